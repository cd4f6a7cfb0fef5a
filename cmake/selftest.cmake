# SPDX-License-Identifier: Apache-2.0
# The pairs of the self-test, families of them in selftest/KIND/family.{cu,cpp}: built like others, listed in a table of their own.
include_guard()
include("${CMAKE_CURRENT_LIST_DIR}/pairs.cmake")

# aisp_describe_family(SOURCE FAMILY ABOUT): its name, and what its pairs have in common: the first comment of the file, one line.
function(aisp_describe_family source family_out about_out)
  get_filename_component(family "${source}" NAME_WLE)
  file(STRINGS "${source}" lines LIMIT_COUNT 2)
  list(GET lines 1 about)
  if(NOT about MATCHES "^// ([^\"\\]+)[.]$")
    message(FATAL_ERROR "${source}: the second line says in one sentence, in a comment, what the pairs of this family do")
  endif()
  set(${family_out} "${family}" PARENT_SCOPE)
  set(${about_out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

# aisp_generate_selftest(OUT_CPP FOLDER): writes the definition of aisp::pair::selftest_registry().
function(aisp_generate_selftest out_cpp folder)
  aisp_list_pairs(pairs "${folder}")
  set(declarations "")
  set(rows "")
  list(LENGTH pairs count)
  foreach(pair IN LISTS pairs)
    aisp_split_pair("${pair}" chapter name source symbol declaration)
    aisp_describe_family("${source}" family about)
    file(RELATIVE_PATH source "${PROJECT_SOURCE_DIR}" "${source}")
    string(APPEND declarations "${declaration}\n")
    string(APPEND rows "    {Entry{\"${chapter}\", \"${name}\", \"${source}\", &${symbol}}, &aisp::${chapter}::${name}, \"${family}\", \"${about}\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT "${out_cpp}" @ONLY CONTENT "// Written by cmake/selftest.cmake from the files in selftest; changes here are lost.
#include \"pair/registry.hpp\"

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

# aisp_add_selftest(FOLDER OUT_CPP): the target aisp_selftest, and the source of its table, which is the core's.
function(aisp_add_selftest folder out_cpp)
  aisp_find_pairs(sources "${folder}")
  set(table "${CMAKE_CURRENT_BINARY_DIR}/generated/aisp_selftest_registry.cpp")
  aisp_generate_selftest("${table}" "${folder}")
  aisp_build_pairs(aisp_selftest STATIC "${sources}" "${folder}")
  # libaisp, which Python loads, holds them too.
  set_target_properties(aisp_selftest PROPERTIES POSITION_INDEPENDENT_CODE ON)
  set(${out_cpp} "${table}" PARENT_SCOPE)
endfunction()
