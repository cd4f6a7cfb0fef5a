# SPDX-License-Identifier: Apache-2.0
# Run at build time (cmake -P): writes the table of source digests, one for each pair, and the text of the pairs' files, which
# reports show. A recorded expectation names the digest of
# the code that was measured; when the code changes, the expectation is stale. The code of a pair is its file and the headers that
# shape its kernels: those of the chapters, and aisp/device, aisp/libraries and aisp/graph.hpp. Comments and white space do not
# count, and the rest of the API belongs to the harness, whose version is in every record.
#   -DAISP_SOURCE_DIR=... -DAISP_FOLDERS=<folders of chapters, with | between them> -DAISP_OUT=<file to write>
cmake_minimum_required(VERSION 3.25)
include("${CMAKE_CURRENT_LIST_DIR}/registry.cmake")

# What the compiler sees of a file, nearly.
function(aisp_code_of file out)
  get_property(known GLOBAL PROPERTY "code ${file}" SET)
  if(NOT known)
    file(READ "${file}" text)
    string(REGEX REPLACE "//[^\n]*" "" text "${text}")
    string(REGEX REPLACE "[ \t\r\n]+" " " text "${text}")
    set_property(GLOBAL PROPERTY "code ${file}" "${text}")
  endif()
  get_property(text GLOBAL PROPERTY "code ${file}")
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

# The headers of the project that a file includes, each with its own, in a fixed order.
function(aisp_headers_of file out)
  get_property(known GLOBAL PROPERTY "headers ${file}" SET)
  if(NOT known)
    set_property(GLOBAL PROPERTY "headers ${file}" "")
    get_filename_component(folder "${file}" DIRECTORY)
    file(STRINGS "${file}" lines REGEX "^#include [<\"]")
    set(found "")
    foreach(line IN LISTS lines)
      set(header "")
      if(line MATCHES "^#include \"([^\"]+)\"")
        foreach(place "${folder}" "${AISP_SOURCE_DIR}/chapters/shared")
          if(NOT header AND EXISTS "${place}/${CMAKE_MATCH_1}")
            get_filename_component(header "${place}/${CMAKE_MATCH_1}" ABSOLUTE)
          endif()
        endforeach()
      elseif(line MATCHES "^#include <(aisp/device/[^>]+|aisp/libraries/[^>]+|aisp/graph.hpp)>")
        set(header "${AISP_SOURCE_DIR}/include/${CMAKE_MATCH_1}")
      endif()
      if(header AND EXISTS "${header}")
        aisp_headers_of("${header}" deeper)
        list(APPEND found "${header}" ${deeper})
      endif()
    endforeach()
    list(REMOVE_DUPLICATES found)
    list(SORT found)
    set_property(GLOBAL PROPERTY "headers ${file}" "${found}")
  endif()
  get_property(found GLOBAL PROPERTY "headers ${file}")
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

string(REPLACE "|" ";" folders "${AISP_FOLDERS}")
aisp_sorted_pairs(pairs ${folders})
set(rows "")
set(files "")
set(texts "")
set(spans "")
foreach(source IN LISTS pairs)
  aisp_headers_of("${source}" headers)
  # For the reader only the chapters' own headers, not the API's.
  set(shown "${source}" ${headers})
  list(FILTER shown EXCLUDE REGEX "^${AISP_SOURCE_DIR}/include/")
  list(LENGTH shown shown_count)
  foreach(file IN LISTS shown)
    file(READ "${file}" text)
    file(RELATIVE_PATH path "${AISP_SOURCE_DIR}" "${file}")
    list(FIND files "${path}" known)
    if(known EQUAL -1)
      list(LENGTH files known)
      list(APPEND files "${path}")
      string(APPEND texts "constexpr SourceFile file_${known}{\"${path}\", R\"aisp_source(${text})aisp_source\"};\n")
    endif()
    string(APPEND spans "    file_${known},\n")
  endforeach()
  list(APPEND counts ${shown_count})
  set(all "")
  foreach(file IN ITEMS "${source}" LISTS headers)
    aisp_code_of("${file}" code)
    string(APPEND all "${code}")
  endforeach()
  string(SHA256 digest "${all}")
  string(APPEND rows "    \"${digest}\",\n")
endforeach()
list(LENGTH pairs count)
set(parts "")
set(first 0)
foreach(shown_count IN LISTS counts)
  string(APPEND parts "    {${first}, ${shown_count}},\n")
  math(EXPR first "${first} + ${shown_count}")
endforeach()
file(WRITE "${AISP_OUT}" "// Written by cmake/digests.cmake; changes here are lost.
#include \"pair/registry.hpp\"

#include <array>

namespace aisp::pair {
namespace {
constexpr std::array<std::string_view, ${count}> digests{{
${rows}}};

${texts}
constexpr std::array<SourceFile, ${first}> files{{
${spans}}};
struct Part {
  std::size_t first, count;
};
constexpr std::array<Part, ${count}> parts{{
${parts}}};
}  // namespace

std::span<const std::string_view> source_digests() { return digests; }
std::span<const SourceFile> source_files(std::size_t index) {
  return std::span<const SourceFile>{files}.subspan(parts.at(index).first, parts.at(index).count);
}

}  // namespace aisp::pair
")
