# What we build with. LibTorch: an ordinary Torch_DIR or CMAKE_PREFIX_PATH wins; else the wheel in TRIREME_VENV or its
# default place (cmake/TriremeToolchain.cmake).
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")  # loops of ours that take time have -O3: trireme_hot
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
find_program(TRIREME_CCACHE ccache)
if(TRIREME_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without the checkout's place in its keys: clones share what they compiled. The sloppiness is what precompiled headers
  # ask for: no source of ours looks at the time of its compilation, nor at a macro that those headers define.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros ${TRIREME_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

if(NOT DEFINED TORCH_CUDA_ARCH_LIST)
  set(TORCH_CUDA_ARCH_LIST "7.5;8.0;9.0+PTX")  # Turing, Ampere, Hopper, and later ones by PTX; LibTorch would otherwise probe for a GPU
endif()
file(GLOB _torch LIST_DIRECTORIES true ${TRIREME_VENV_DIR}/lib/python3*/site-packages/torch)
unset(CMAKE_CUDA_ARCHITECTURES CACHE)  # LibTorch warns when it is set; it takes the list above
unset(CMAKE_CUDA_ARCHITECTURES)
find_package(Torch 2.11 REQUIRED PATHS ${_torch})  # PATHS come after everything that the user set
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_STANDARD 17)
find_package(CUDAToolkit REQUIRED)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
find_package(GIF REQUIRED)
find_package(TIFF 4.5 REQUIRED)
pkg_check_modules(WEBP REQUIRED IMPORTED_TARGET libwebp libwebpdemux)
find_package(ZLIB REQUIRED)
find_path(TRIREME_CSV_INCLUDE csv.h REQUIRED)
find_library(TRIREME_CSV_LIBRARY csv REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc i18n)
find_path(TRIREME_TOMLPP_INCLUDE toml++/toml.h REQUIRED)
find_path(TRIREME_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
find_package(nlohmann_json REQUIRED)
if(TRIREME_WITH_MPI)
  find_package(MPI REQUIRED COMPONENTS CXX)
endif()
# NCCL's header: beside the LibTorch that was built with it, else the system's.
find_path(TRIREME_NCCL_INCLUDE nccl.h HINTS ${TORCH_INSTALL_PREFIX}/../nvidia/nccl/include REQUIRED)
