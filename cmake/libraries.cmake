# SPDX-License-Identifier: Apache-2.0
# aisp_libraries: what src is built on. Header-only all of them, so that the executable needs nothing but glibc and the driver.
add_library(aisp_libraries INTERFACE)

# aisp_header_library(PACKAGE HEADER TARGET...): links the first of the targets that the package defines; a plain header on the include path
# does as well, since some distributions ship no package file.
function(aisp_header_library package header)
  find_package(${package} QUIET CONFIG)
  foreach(target IN LISTS ARGN)
    if(TARGET ${target})
      target_link_libraries(aisp_libraries INTERFACE ${target})
      return()
    endif()
  endforeach()
  find_path(AISP_${package}_INCLUDE "${header}")
  if(NOT AISP_${package}_INCLUDE)
    message(FATAL_ERROR "${header} was not found; run ./setup.sh, which installs it")
  endif()
  target_include_directories(aisp_libraries SYSTEM INTERFACE "${AISP_${package}_INCLUDE}")
endfunction()

aisp_header_library(fmt fmt/format.h fmt::fmt-header-only)
aisp_header_library(CLI11 CLI/CLI.hpp CLI11::CLI11)
aisp_header_library(nlohmann_json nlohmann/json.hpp nlohmann_json::nlohmann_json)
# The targets of these two may bring compiled libraries, so only their headers are used.
find_path(AISP_spdlog_INCLUDE spdlog/spdlog.h REQUIRED)
find_path(AISP_toml_INCLUDE toml++/toml.h REQUIRED)
target_compile_definitions(aisp_libraries INTERFACE FMT_HEADER_ONLY=1 SPDLOG_FMT_EXTERNAL)

find_package(Threads REQUIRED)
target_link_libraries(aisp_libraries INTERFACE Threads::Threads ${CMAKE_DL_LIBS} rt)
