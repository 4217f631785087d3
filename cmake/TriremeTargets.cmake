# Helpers that keep each folder's CMakeLists.txt to a list of sources.

# Warnings and options of our own code. LibTorch comes without libtorch_cuda: that library and what needs it is loaded
# only when a GPU is used (0.2 s and 350 MB a process saved on CPU ranks).
add_library(trireme_options INTERFACE)
target_compile_options(trireme_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wundef -Wno-unknown-pragmas -Wno-restrict $<$<BOOL:${TRIREME_WERROR}>:-Werror>>
  # __FILE__ without the checkout's place: the same for all clones, which then share what they compiled.
  $<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>
  # A gigabyte before g++ collects garbage: a tenth of a file's time.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=1048576>)
target_include_directories(trireme_options INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
target_include_directories(trireme_options SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS} ${CUDAToolkit_INCLUDE_DIRS})
target_compile_definitions(trireme_options INTERFACE USE_DISTRIBUTED USE_C10D_NCCL)
target_link_libraries(trireme_options INTERFACE torch_cpu c10 Threads::Threads)
target_link_options(trireme_options INTERFACE -Wl,--allow-shlib-undefined)
if(TRIREME_SANITIZE)
  target_compile_options(trireme_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TRIREME_SANITIZE} -fno-sanitize=vptr -fno-omit-frame-pointer>)
  target_link_options(trireme_options INTERFACE -fsanitize=${TRIREME_SANITIZE})
endif()
find_program(TRIREME_MOLD mold)
if(TRIREME_MOLD)
  target_link_options(trireme_options INTERFACE -fuse-ld=mold)
endif()

# Headers that many files include, read once for each of three kinds of files; a file that calls LibTorch's operators then
# compiles in half the time. A kind has no more than most of its files need, for the compiler instantiates the pending
# templates of all precompiled headers in every file anew.
option(TRIREME_PRECOMPILE "Precompile the headers that most files include" ON)
set(CMAKE_CXX_COMPILE_OPTIONS_PIE ${CMAKE_CXX_COMPILE_OPTIONS_PIC})  # one set of headers for libraries and programs
set(_tensors <algorithm> <array> <chrono> <cmath> <filesystem> <fstream> <functional> <map> <memory> <mutex> <numeric>
  <optional> <set> <string> <string_view> <unordered_map> <utility> <vector> <fmt/format.h> <fmt/ranges.h>
  <ATen/core/Tensor.h> <ATen/TensorOperators.h> <ATen/core/grad_mode.h> <ATen/ops/empty.h> <ATen/ops/zeros.h>)
set(_modules ${_tensors} <torch/nn/module.h>)
set(_tests ${_modules} <gtest/gtest.h>)
if(TRIREME_BUILD_TESTS)
  find_package(GTest REQUIRED)
  # The time limit of every test, in seconds. It ends a test that hangs: no test takes as long, even on a loaded machine.
  set(DART_TESTING_TIMEOUT 900)
  set_property(GLOBAL PROPERTY CTEST_TARGETS_ADDED ON)  # no targets for a dashboard
  include(CTest)
endif()
if(TRIREME_PRECOMPILE)
  foreach(kind tensors modules tests)
    if(kind STREQUAL "tests" AND NOT TRIREME_BUILD_TESTS)
      continue()
    endif()
    add_library(trireme_headers_of_${kind} OBJECT EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
    target_link_libraries(trireme_headers_of_${kind} PRIVATE trireme_options)
    target_precompile_headers(trireme_headers_of_${kind} PRIVATE ${_${kind}})
  endforeach()
  if(TRIREME_BUILD_TESTS)  # a header is used by files with the same definitions alone
    target_link_libraries(trireme_headers_of_tests PRIVATE GTest::gtest)
  endif()
endif()

# trireme_precompiled(target tensors|modules|tests): its files start with the precompiled headers of that kind.
function(trireme_precompiled target kind)
  if(TRIREME_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM trireme_headers_of_${kind})
  endif()
endfunction()

# trireme_part(base SOURCES a.cpp b.cpp [LIBRARIES ...] [PRECOMPILED kind]): an object library that goes into libtrireme.
function(trireme_part name)
  cmake_parse_arguments(arg "" "PRECOMPILED" "SOURCES;LIBRARIES" ${ARGN})
  if(NOT arg_SOURCES)
    return()
  endif()
  add_library(trireme_${name} OBJECT ${arg_SOURCES})
  target_link_libraries(trireme_${name} PRIVATE trireme_options ${arg_LIBRARIES})
  if(arg_PRECOMPILED)
    trireme_precompiled(trireme_${name} ${arg_PRECOMPILED})
  endif()
  target_sources(trireme PRIVATE $<TARGET_OBJECTS:trireme_${name}>)
  target_link_libraries(trireme PRIVATE ${arg_LIBRARIES})
endfunction()

# trireme_plugin(torch_ddp SOURCES ...): build/…/lib/trireme/plugins/torch_ddp.so
function(trireme_plugin name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(trireme_plugin_${name} MODULE ${arg_SOURCES})
  target_link_libraries(trireme_plugin_${name} PRIVATE trireme trireme_options ${arg_LIBRARIES})
  trireme_precompiled(trireme_plugin_${name} modules)
  set_target_properties(trireme_plugin_${name} PROPERTIES PREFIX "" OUTPUT_NAME ${name}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib/trireme/plugins)
endfunction()

# trireme_hot(a.cpp ...): files whose loops take a run's time. All others are compiled with -O2: their work is
# LibTorch's calls.
function(trireme_hot)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O3>)
endfunction()

add_custom_target(trireme_unit_tests)  # the programs of tests/unit alone
if(TRIREME_BUILD_TESTS)
  add_library(trireme_test_seed OBJECT ${PROJECT_SOURCE_DIR}/tests/seed.cpp)
  target_link_libraries(trireme_test_seed PRIVATE trireme_options GTest::gtest)
  trireme_precompiled(trireme_test_seed tests)
endif()

# Tests that measure time are in suites whose names end with Time. They have a CTest entry of their own, name_time, with
# the label "time", and run alone: on a machine that does something else they may fail.
set(_timed --gtest_filter=*Time.*)
set(_not_timed --gtest_filter=-*Time.*)

# trireme_add_test(name SOURCES ... [LABELS ...] [TIMED]): a GoogleTest program, one CTest entry, TIMED: two. Those below
# tests/unit have the label "unit". LibTorch's random numbers on the CPU are the same in each run of a test.
function(trireme_add_test name)
  cmake_parse_arguments(arg "TIMED" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES} $<TARGET_OBJECTS:trireme_test_seed>)
  target_link_libraries(${name} PRIVATE trireme trireme_options GTest::gtest GTest::gtest_main ${arg_LIBRARIES})
  target_compile_definitions(${name} PRIVATE TRIREME_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  trireme_precompiled(${name} tests)
  add_test(NAME ${name} COMMAND ${name} ${_not_timed})
  if(arg_TIMED)
    add_test(NAME ${name}_time COMMAND ${name} ${_timed})
    set_tests_properties(${name}_time PROPERTIES LABELS time RUN_SERIAL ON ENVIRONMENT "OMP_WAIT_POLICY=passive")
  endif()
  if(CMAKE_CURRENT_SOURCE_DIR MATCHES "/tests/unit/")
    list(APPEND arg_LABELS unit)
    add_dependencies(trireme_unit_tests ${name})
  endif()
  # Threads that spin while they wait cost minutes when several tests run at once.
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" ENVIRONMENT "OMP_WAIT_POLICY=passive")
endfunction()

# trireme_loads_plugins(name [TEST ...]): the test program loads the built-in plugins, also in its further CTest entries.
function(trireme_loads_plugins name)
  foreach(plugin torch_ddp data_parallel low_level_zero gemini hybrid_parallel)
    add_dependencies(${name} trireme_plugin_${plugin})
  endforeach()
  set_property(TEST ${name} ${ARGN} APPEND PROPERTY ENVIRONMENT
    "TRIREME_PLUGIN_PATH=${PROJECT_BINARY_DIR}/lib/trireme/plugins")
endfunction()

# trireme_add_ranks_test(name RANKS 2 4 [MPI 2 4] [TIMED 2] SOURCES ...): a program and its CTest entries, as
# trireme_add_ranks_entries makes them. The program has its own main (tests/ranks/main.cpp).
function(trireme_add_ranks_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES} ${PROJECT_SOURCE_DIR}/tests/ranks/main.cpp)
  target_link_libraries(${name} PRIVATE trireme trireme_options GTest::gtest ${arg_LIBRARIES})
  target_compile_definitions(${name} PRIVATE TRIREME_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  trireme_precompiled(${name} tests)
  add_dependencies(${name} trireme_launcher)
  trireme_add_ranks_entries(${name} PROGRAM ${name} ${arg_UNPARSED_ARGUMENTS})
endfunction()

# trireme_add_ranks_entries(name PROGRAM program [FILES files] [CHECKED] RANKS 2 4 [MPI 2 4] [TIMED 2]): the program under `trireme
# launch`, one CTest entry a number of ranks; with MPI also under mpirun (name_mpi_2), in a build that has it; with TIMED
# also what measures time (name_time_2). The program fails, never skips, when started with another number of ranks.
# FILES: the tests of files_*.cpp alone. CHECKED: the ranks compare each operation before it runs (WorldOptions::check).
function(trireme_add_ranks_entries name)
  cmake_parse_arguments(arg "CHECKED" "PROGRAM;FILES" "LABELS;RANKS;MPI;TIMED" ${ARGN})
  set(program $<TARGET_FILE:${arg_PROGRAM}> ${arg_FILES})
  foreach(ranks ${arg_RANKS})
    add_test(NAME ${name}_${ranks} COMMAND trireme_launcher launch -n ${ranks} ${program} ${_not_timed})
    list(APPEND tests ${name}_${ranks})
    set_tests_properties(${name}_${ranks} PROPERTIES LABELS "ranks;${arg_LABELS}" ENVIRONMENT TRIREME_TEST_RANKS=${ranks})
  endforeach()
  if(NOT TRIREME_WITH_MPI)
    set(arg_MPI)
  endif()
  foreach(ranks ${arg_MPI})
    add_test(NAME ${name}_mpi_${ranks} COMMAND ${MPIEXEC_EXECUTABLE} -n ${ranks} --oversubscribe --allow-run-as-root
      --quiet --mca mpi_yield_when_idle 1 --bind-to none ${program} ${_not_timed})
    list(APPEND tests ${name}_mpi_${ranks})
    set_tests_properties(${name}_mpi_${ranks} PROPERTIES LABELS "mpi;${arg_LABELS}" ENVIRONMENT TRIREME_TEST_RANKS=${ranks})
  endforeach()
  foreach(ranks ${arg_TIMED})
    add_test(NAME ${name}_time_${ranks} COMMAND trireme_launcher launch -n ${ranks} ${program} ${_timed})
    list(APPEND tests ${name}_time_${ranks})
    set_tests_properties(${name}_time_${ranks} PROPERTIES LABELS time RUN_SERIAL ON ENVIRONMENT TRIREME_TEST_RANKS=${ranks})
  endforeach()
  set_tests_properties(${tests} PROPERTIES PROCESSORS 2)
  if(1 IN_LIST arg_RANKS)  # alone, with one thread
    set_tests_properties(${name}_1 PROPERTIES PROCESSORS 1)
  endif()
  if(arg_CHECKED)
    set_property(TEST ${tests} APPEND PROPERTY ENVIRONMENT TRIREME_TEST_CHECK=1)
  endif()
  set_property(TEST ${tests} APPEND PROPERTY ENVIRONMENT OMP_NUM_THREADS=1
    "TRIREME_PLUGIN_PATH=${PROJECT_BINARY_DIR}/lib/trireme/plugins")
endfunction()
