# SPDX-License-Identifier: Apache-2.0
# aisp_libraries: what src is built on. No shared library is among them, so that the executable needs nothing but glibc and the driver.
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

# src/base/fmt.cpp compiles fmt's functions, whose list is that of fmt 9 (Debian 12, Ubuntu 24.04); of others each file has its own.
find_path(AISP_fmt_INCLUDE fmt/format.h)
if(NOT AISP_fmt_INCLUDE)
  message(FATAL_ERROR "fmt/format.h was not found; run ./setup.sh, which installs it")
endif()
file(STRINGS "${AISP_fmt_INCLUDE}/fmt/core.h" fmt_version REGEX "^#define FMT_VERSION 9[0-9][0-9][0-9][0-9]$")
if(NOT fmt_version)
  target_compile_definitions(aisp_libraries INTERFACE FMT_HEADER_ONLY=1)
endif()
target_include_directories(aisp_libraries SYSTEM INTERFACE "${AISP_fmt_INCLUDE}")
aisp_header_library(CLI11 CLI/CLI.hpp CLI11::CLI11)
aisp_header_library(nlohmann_json nlohmann/json.hpp nlohmann_json::nlohmann_json)
# Its target may bring a compiled library, so only the headers are used.
find_path(AISP_toml_INCLUDE toml++/toml.h REQUIRED)

# libdeflate packs the pages of reports and the text of the pairs' sources, smaller than zlib does. Linked in, like the others.
find_path(AISP_deflate_INCLUDE libdeflate.h)
find_library(AISP_deflate libdeflate.a)
if(NOT AISP_deflate_INCLUDE OR NOT AISP_deflate)
  message(FATAL_ERROR "libdeflate.h or libdeflate.a was not found; run ./setup.sh, which installs libdeflate-dev")
endif()
target_include_directories(aisp_libraries SYSTEM INTERFACE "${AISP_deflate_INCLUDE}")

find_package(Threads REQUIRED)
target_link_libraries(aisp_libraries INTERFACE "${AISP_deflate}" Threads::Threads ${CMAKE_DL_LIBS} rt)
