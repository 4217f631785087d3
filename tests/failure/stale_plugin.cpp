// A plugin as another version of Trireme would have built it. Only its ELF note may be read: loading it aborts the
// process.
#include <cstdlib>

asm(".pushsection .note.trireme,\"a\",@note\n.balign 4\n.long 8\n.long 2f-1f\n.long 1\n.asciz \"Trireme\"\n"
    "1: .asciz \"abi=" STALE_ABI ";trireme=0.0.1;torch=2.5.0;compiler=g++ 9\"\n2: .balign 4\n.popsection\n");

namespace {
struct Trap {
  Trap() { std::abort(); }
} trap;
}  // namespace

extern "C" void* trireme_plugin_make() { return &trap; }
