# SPDX-License-Identifier: Apache-2.0
# The pairs of the self-test, selftest/chNN/name.{cu,cpp}: built like others, listed in a table of their own.
include_guard()
include("${CMAKE_CURRENT_LIST_DIR}/pairs.cmake")

# aisp_generate_selftest(OUT_CPP FOLDER): writes the definition of aisp::pair::selftest_registry().
function(aisp_generate_selftest out_cpp folder)
  aisp_sorted_pairs(pairs "${folder}")
  set(declarations "")
  set(rows "")
  list(LENGTH pairs count)
  foreach(source IN LISTS pairs)
    aisp_name_pair("${source}" chapter name symbol declaration)
    file(RELATIVE_PATH source "${PROJECT_SOURCE_DIR}" "${source}")
    string(APPEND declarations "${declaration}\n")
    string(APPEND rows "    {Entry{\"${chapter}\", \"${name}\", \"${source}\", &${symbol}}, &aisp::${chapter}::${name}},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${out_cpp}" @ONLY CONTENT "// Written by cmake/selftest.cmake from the files in selftest; changes here are lost.
#include \"pair/selftest.hpp\"

#include <array>

@declarations@
namespace aisp::pair {
namespace {
constexpr std::array<SelftestEntry, @count@> table{{
@rows@}};
}  // namespace

std::span<const SelftestEntry> selftest_registry() { return table; }

}  // namespace aisp::pair
")
endfunction()

# aisp_add_selftest(FOLDER): targets aisp_selftest (objects of the pairs) and aisp_selftest_registry.
function(aisp_add_selftest folder)
  aisp_find_pairs(sources "${folder}")
  set(table "${CMAKE_CURRENT_BINARY_DIR}/generated/aisp_selftest_registry.cpp")
  aisp_generate_selftest("${table}" "${folder}")
  add_library(aisp_selftest_registry OBJECT "${table}")
  target_include_directories(aisp_selftest_registry PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(aisp_selftest_registry PRIVATE aisp_api aisp_warnings)
  aisp_build_pairs(aisp_selftest "${sources}")
endfunction()
