# Install and package config: find_package(Trireme). What is installed follows from the targets that exist: libraries of
# core to lib, plugins to lib/trireme/plugins, the command to bin, its helpers to libexec/trireme, headers to
# include/trireme (so that #include "core/booster/booster.h" reads the same in and out of the tree).
include(CMakePackageConfigHelpers)

# All targets of a folder and the folders below it.
function(trireme_targets_below dir out)
  get_property(found DIRECTORY ${dir} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(below DIRECTORY ${dir} PROPERTY SUBDIRECTORIES)
  foreach(sub ${below})
    trireme_targets_below(${sub} more)
    list(APPEND found ${more})
  endforeach()
  set(${out} ${found} PARENT_SCOPE)
endfunction()

add_custom_target(trireme_product)  # the command, the libraries and the plugins, without tests
add_dependencies(trireme_product trireme)
set(_lib ${CMAKE_INSTALL_LIBDIR})
set(_programs "")
foreach(folder core models shardformer pipeline zero plugins apps)
  if(NOT IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${folder})
    continue()
  endif()
  trireme_targets_below(${PROJECT_SOURCE_DIR}/${folder} _targets)
  foreach(target ${_targets})
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      get_target_property(output ${target} OUTPUT_NAME)
      if(output STREQUAL "trireme" OR (NOT output AND target STREQUAL "trireme"))
        set(place ${CMAKE_INSTALL_BINDIR})
        set(rpath "$ORIGIN/../${_lib}")
      else()
        set(place ${CMAKE_INSTALL_LIBEXECDIR}/trireme)
        set(rpath "$ORIGIN/../../${_lib}")
      endif()
      install(TARGETS ${target} RUNTIME DESTINATION ${place})
    elseif(type STREQUAL "MODULE_LIBRARY")
      set(rpath "$ORIGIN/../..")
      install(TARGETS ${target} LIBRARY DESTINATION ${_lib}/trireme/plugins)
    elseif(type STREQUAL "SHARED_LIBRARY")
      set(rpath "$ORIGIN")
      install(TARGETS ${target} LIBRARY DESTINATION ${_lib})
    else()
      continue()
    endif()
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "${rpath}" INSTALL_RPATH_USE_LINK_PATH ON)
    add_dependencies(trireme_product ${target})
  endforeach()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trireme
    FILES_MATCHING PATTERN "*.h")
endforeach()

set_target_properties(trireme PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH ON)
target_include_directories(trireme INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/trireme>)
target_compile_features(trireme INTERFACE cxx_std_20)
# LibTorch's own package would ask a consumer for a CUDA toolkit: Trireme's config names its CPU libraries by itself.
target_link_libraries(trireme INTERFACE $<INSTALL_INTERFACE:Trireme::libtorch>)
install(TARGETS trireme EXPORT TriremeTargets LIBRARY DESTINATION ${_lib})
install(EXPORT TriremeTargets NAMESPACE Trireme:: DESTINATION ${_lib}/cmake/Trireme)

set(_package ${PROJECT_BINARY_DIR}/package)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/TriremeConfig.cmake.in ${_package}/TriremeConfig.cmake
  INSTALL_DESTINATION ${_lib}/cmake/Trireme)
write_basic_package_version_file(${_package}/TriremeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${_package}/TriremeConfig.cmake ${_package}/TriremeConfigVersion.cmake
  DESTINATION ${_lib}/cmake/Trireme)
