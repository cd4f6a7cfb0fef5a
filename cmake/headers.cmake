# SPDX-License-Identifier: Apache-2.0
# aisp_embed_device_headers(OUT_CPP): the source with the headers of include/aisp/device and what stands for CUDA's own (src/compile/
# headers.hpp): kernels that are compiled at run time include them.
function(aisp_embed_device_headers out_cpp)
  file(GLOB files CONFIGURE_DEPENDS "${AISP_API_INCLUDE}/aisp/device/*.cuh" "${AISP_API_INCLUDE}/aisp/device/*.hpp")
  set(standard "${PROJECT_SOURCE_DIR}/src/compile/standard.cuh")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files} "${standard}")
  file(READ "${standard}" text)
  set(rows "    {\"standard.cuh\", R\"aisp_text(${text})aisp_text\"},\n")
  foreach(file IN LISTS files)
    file(RELATIVE_PATH name "${AISP_API_INCLUDE}" "${file}")
    file(READ "${file}" text)
    string(APPEND rows "    {\"${name}\", R\"aisp_text(${text})aisp_text\"},\n")
  endforeach()
  list(LENGTH files count)
  math(EXPR count "${count} + 1")
  aisp_write_if_changed("${PROJECT_BINARY_DIR}/generated/aisp_device_headers.cpp" "// Written by cmake/headers.cmake; changes here are lost.
#include \"compile/headers.hpp\"

#include <array>

namespace aisp::compile {
namespace {
constexpr std::array<Header, ${count}> table{{
${rows}}};
}  // namespace

std::span<const Header> device_headers() { return table; }

}  // namespace aisp::compile
")
  set(${out_cpp} "${PROJECT_BINARY_DIR}/generated/aisp_device_headers.cpp" PARENT_SCOPE)
endfunction()
