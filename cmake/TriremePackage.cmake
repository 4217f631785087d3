# Packages of the product: `bundle`, one relocatable archive with all but LibTorch and glibc; `gpu_bundle`, the same with
# scripts/gpu_check.sh and its programs; and CPack's .deb, which leaves Open MPI, ICU and the image libraries to the system.
if(TRIREME_WITH_MPI)
  set(_system ${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
  add_custom_target(bundle
    COMMAND ${PROJECT_SOURCE_DIR}/scripts/bundle.sh
      ${PROJECT_BINARY_DIR} ${PROJECT_BINARY_DIR}/trireme-${_system}.tar.zst ${CMAKE_COMMAND}
    DEPENDS trireme_product USES_TERMINAL VERBATIM)
  if(TARGET gpu_check_programs)
    add_custom_target(gpu_bundle
      COMMAND ${PROJECT_SOURCE_DIR}/scripts/bundle.sh --gpu
        ${PROJECT_BINARY_DIR} ${PROJECT_BINARY_DIR}/trireme-gpu-check-${_system}.tar.gz ${CMAKE_COMMAND}
      DEPENDS gpu_check_programs USES_TERMINAL VERBATIM)
  endif()
endif()

# The .deb looks for LibTorch on the machine it is on, as the bundle does.
file(WRITE ${PROJECT_BINARY_DIR}/package/forget_libtorch.cmake
  "file(GLOB_RECURSE linked \${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*/share/trireme/libtorch)\nfile(REMOVE \${linked})\n")
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_BINARY_DIR}/package/forget_libtorch.cmake)
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME trireme)
set(CPACK_PACKAGE_VENDOR "The Trireme developers")
set(CPACK_PACKAGE_CONTACT "The Trireme developers <trireme@localhost>")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE _glibc OUTPUT_STRIP_TRAILING_WHITESPACE)
string(REPLACE "glibc " "" _glibc "${_glibc}")
string(REGEX MATCH "^[0-9]+" _icu "${ICU_VERSION}")
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${_glibc}), libstdc++6, libjpeg62-turbo, libpng16-16, libwebp7, libwebpdemux2, libtiff6, libgif7, zlib1g, libcsv3, libicu${_icu}, libopenmpi3, openmpi-bin")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3-venv")
set(CPACK_PACKAGE_DESCRIPTION "Hybrid-parallel training in C++
 The command trireme trains models on 1 to N ranks from one TOML file; the library
 serves training programs in C++. LibTorch ${Torch_VERSION} is not included: the command takes the
 torch package of the active Python environment, or the folder in TRIREME_TORCH.")
include(CPack)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # a package needs the product, not the tests
add_custom_target(deb COMMAND ${CMAKE_CPACK_COMMAND} --config ${PROJECT_BINARY_DIR}/CPackConfig.cmake
  WORKING_DIRECTORY ${PROJECT_BINARY_DIR} DEPENDS trireme_product USES_TERMINAL VERBATIM)
