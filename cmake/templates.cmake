# SPDX-License-Identifier: Apache-2.0
# aisp_embed_templates(FOLDER OUT_CPP): the source with the text of what `aisp new` writes (src/cli/templates.hpp): pairs like others, which
# the tests' executable holds too, so that they go on to build and to pass, and a script.
function(aisp_embed_templates folder out_cpp)
  file(GLOB files CONFIGURE_DEPENDS "${folder}/*.cu" "${folder}/*.cpp" "${folder}/*.py")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})
  set(rows "")
  foreach(file IN LISTS files)
    get_filename_component(kind "${file}" NAME_WLE)
    get_filename_component(extension "${file}" LAST_EXT)
    file(READ "${file}" text)
    string(APPEND rows "    {\"${kind}\", \"${extension}\", R\"aisp_text(${text})aisp_text\"},\n")
  endforeach()
  list(LENGTH files count)
  aisp_write_if_changed("${PROJECT_BINARY_DIR}/generated/aisp_templates.cpp" "// Written by cmake/templates.cmake from the folder templates; changes here are lost.
#include \"cli/templates.hpp\"

#include <array>

namespace aisp::cli {
namespace {
constexpr std::array<Template, ${count}> table{{
${rows}}};
}  // namespace

std::span<const Template> templates() { return table; }

}  // namespace aisp::cli
")
  set(${out_cpp} "${PROJECT_BINARY_DIR}/generated/aisp_templates.cpp" PARENT_SCOPE)
endfunction()
