# CTest entries (label lint) that read the sources and the documents rather than run the product.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
function(trireme_add_check name)
  add_test(NAME lint_${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(lint_${name} PROPERTIES LABELS lint SKIP_RETURN_CODE 77)
endfunction()

trireme_add_check(includes ${Python3_EXECUTABLE} scripts/check_includes.py)
trireme_add_check(calls ${Python3_EXECUTABLE} scripts/check_calls.py)
trireme_add_check(plugin_abi ${Python3_EXECUTABLE} scripts/check_plugin_abi.py)
trireme_add_check(docs ${Python3_EXECUTABLE} scripts/check_docs.py)
trireme_add_check(format scripts/format.sh --check)
trireme_add_check(checks ${Python3_EXECUTABLE} tests/lint/checks_test.py)
trireme_add_check(scripts bash -n scripts/common.sh scripts/setup.sh scripts/format.sh scripts/check_config_page.sh
  scripts/bundle.sh scripts/check_fresh.sh tests/install/bundle.sh tests/install/configure.sh
  tests/install/consume.sh tests/install/gpu_check.sh scripts/fuzz.sh scripts/stress_tests.sh
  scripts/check_plot.sh scripts/gpu_check.sh scripts/gpu_check_sections.sh quickstart.sh test.sh .ci/run)

# The machine code of our kernels. LibTorch's Python package brings triton, which has the tool too.
find_program(TRIREME_CUOBJDUMP cuobjdump HINTS ${CUDAToolkit_BIN_DIR} ${TORCH_INSTALL_PREFIX}/../triton/backends/nvidia/bin)
trireme_add_check(kernels ${Python3_EXECUTABLE} scripts/check_kernels.py $<TARGET_FILE:trireme_cuda> ${TRIREME_CUOBJDUMP})

# Installs, builds an example against what was installed, and runs it; the long tests do so with all examples, and with
# the bundle and the .deb, unpacked in another place.
if(TARGET trireme_launcher AND TRIREME_WITH_MPI AND NOT TRIREME_SANITIZE)
  set(_consume ${PROJECT_SOURCE_DIR}/tests/install/consume.sh ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
  add_test(NAME install_and_consume COMMAND ${_consume} train_from_cpp)
  add_test(NAME install_and_consume_all COMMAND ${_consume})
  add_test(NAME bundle_test
    COMMAND ${PROJECT_SOURCE_DIR}/tests/install/bundle.sh ${PROJECT_BINARY_DIR} ${TORCH_INSTALL_PREFIX})
  set_tests_properties(install_and_consume PROPERTIES LABELS install)
  set_tests_properties(install_and_consume_all bundle_test PROPERTIES LABELS "install;long")
endif()

# scripts/gpu_check.sh with the CPU in the GPU's place: each section's verdict.
if(TARGET gpu_check_programs AND TRIREME_WITH_MPI AND NOT TRIREME_SANITIZE)
  add_test(NAME gpu_check_dry COMMAND ${PROJECT_SOURCE_DIR}/tests/install/gpu_check.sh ${PROJECT_BINARY_DIR})
  set_tests_properties(gpu_check_dry PROPERTIES LABELS install COST 60)
endif()
add_test(NAME configure_as_users_do
  COMMAND ${PROJECT_SOURCE_DIR}/tests/install/configure.sh ${PROJECT_SOURCE_DIR} ${TORCH_INSTALL_PREFIX})
set_tests_properties(configure_as_users_do PROPERTIES LABELS "install;long" SKIP_RETURN_CODE 77)

# docs/config.md is generated from the field tables.
if(TARGET trireme_launcher)
  trireme_add_check(config_page bash scripts/check_config_page.sh $<TARGET_FILE:trireme_launcher>)
endif()
