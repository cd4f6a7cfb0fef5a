# SPDX-License-Identifier: Apache-2.0
# Files for find_package(aisp), component "development": a project of one's own links the same archives as the executable aisp, and
# builds its pairs by the same functions. fmt, JSON, CLI11 and toml++ are headers, compiled into the archive; nobody needs them then.
include(CMakePackageConfigHelpers)
set(package "${CMAKE_INSTALL_LIBDIR}/cmake/aisp")

target_link_options(aisp_core INTERFACE "$<INSTALL_INTERFACE:${aisp_link_options}>")
# libdeflate goes with the archives, so that nobody needs its package then.
set(installed_deflate "\${_IMPORT_PREFIX}/${CMAKE_INSTALL_LIBDIR}/aisp/libdeflate.a")
target_link_libraries(aisp_core INTERFACE "$<INSTALL_INTERFACE:${installed_deflate};Threads::Threads;${CMAKE_DL_LIBS};rt>")
install(FILES "${AISP_deflate}" DESTINATION "${CMAKE_INSTALL_LIBDIR}/aisp" COMPONENT development)
target_include_directories(aisp_api INTERFACE "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
install(TARGETS aisp_api aisp_core aisp_selftest aisp_main EXPORT aisp
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development)
install(EXPORT aisp FILE aispTargets.cmake DESTINATION "${package}" COMPONENT development)

set(include_folder "${CMAKE_INSTALL_INCLUDEDIR}")
configure_package_config_file(cmake/aispConfig.cmake.in "${PROJECT_BINARY_DIR}/generated/aispConfig.cmake" INSTALL_DESTINATION "${package}"
                              PATH_VARS include_folder)
# Before 1.0 a minor version may change the pair API.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/aispConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/generated/aispConfig.cmake" "${PROJECT_BINARY_DIR}/generated/aispConfigVersion.cmake"
        DESTINATION "${package}" COMPONENT development)

install(DIRECTORY include/aisp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)
# As they lie in the tree, so that they find each other.
install(FILES src/pair/registry.hpp src/pair/code.hpp DESTINATION "${package}/src/pair" COMPONENT development)
install(FILES cmake/find-cuda.cmake cmake/pairs.cmake cmake/registry.cmake cmake/toolkit.cmake DESTINATION "${package}/cmake"
        COMPONENT development)
install(PROGRAMS scripts/check-pair scripts/check-symbols scripts/check-includes.py DESTINATION "${package}/scripts" COMPONENT development)
install(DIRECTORY cmake/code DESTINATION "${package}/cmake" COMPONENT development PATTERN "__pycache__" EXCLUDE)
