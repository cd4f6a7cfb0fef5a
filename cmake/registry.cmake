# SPDX-License-Identifier: Apache-2.0
# Finds pairs and writes the table that registers them. A pair is one file, FOLDER/chapter/name.cu or FOLDER/chapter/name.cpp, and its
# path is its only name. In the folder selftest a file is a family of pairs, which it declares itself.
include_guard()

# A chapter is a namespace inside aisp: not one that is there already, and none that --targets understands otherwise.
set(AISP_TAKEN_CHAPTERS all base build_info cli compile cudnn decoder detail device device_runtime evidence fixtures foreign knowledge libraries machine measure pair peak profile report run
    selftest suite verify)

# aisp_check_chapter(SOURCE CHAPTER): stops at a folder that cannot hold pairs. AISP_NUMBERED: those of a book's chapters only.
function(aisp_check_chapter source chapter)
  if(AISP_NUMBERED AND NOT chapter MATCHES "^ch[0-9][0-9]$")
    message(FATAL_ERROR "${source}: bad chapter folder '${chapter}'; pairs lie in folders named ch and two digits, as ch07 "
                        "(headers that several chapters share go to chapters/shared and end in .cuh or .hpp)")
  endif()
  if(chapter STREQUAL "shared")
    message(FATAL_ERROR "${source}: bad chapter folder 'shared'; it is for headers that several chapters share, which end in .cuh or .hpp")
  endif()
  if(NOT chapter MATCHES "^[a-z][a-z0-9_]*$")
    message(FATAL_ERROR "${source}: bad chapter folder '${chapter}'; a folder of pairs is a namespace too, so its name must match "
                        "[a-z][a-z0-9_]*; rename the folder")
  endif()
  if(chapter IN_LIST AISP_TAKEN_CHAPTERS)
    message(FATAL_ERROR "${source}: bad chapter folder '${chapter}'; a folder of pairs is a namespace too, and that name is taken; rename the folder")
  endif()
endfunction()

# aisp_find_pairs(OUT FOLDER...): the sorted, absolute paths of all files of pairs below the folders; stops at what cannot be a pair.
function(aisp_find_pairs out)
  # Scripts (cmake -P, used by the tests) know no CONFIGURE_DEPENDS.
  set(depends CONFIGURE_DEPENDS)
  if(CMAKE_SCRIPT_MODE_FILE)
    set(depends)
  endif()
  set(found)
  set(names)
  foreach(folder IN LISTS ARGN)
    if(folder MATCHES "/selftest$")
      file(GLOB families ${depends} "${folder}/*/*.cu" "${folder}/*/*.cpp")
      list(APPEND found ${families})
      continue()
    endif()
    file(GLOB misplaced ${depends} "${folder}/*.cu" "${folder}/*.cpp")
    if(misplaced)
      list(GET misplaced 0 first)
      message(FATAL_ERROR "${first}: a pair lies in a chapter's folder, as in ${folder}/ch07/name.cu; move the file there")
    endif()
    file(GLOB sources ${depends} "${folder}/*/*.cu" "${folder}/*/*.cpp" "${folder}/*/*.cc" "${folder}/*/*.cxx" "${folder}/*/*.c")
    foreach(source IN LISTS sources)
      get_filename_component(directory "${source}" DIRECTORY)
      get_filename_component(chapter "${directory}" NAME)
      get_filename_component(name "${source}" NAME_WLE)
      get_filename_component(extension "${source}" LAST_EXT)
      aisp_check_chapter("${source}" "${chapter}")
      if(NOT extension MATCHES "^\\.(cu|cpp)$")
        message(FATAL_ERROR "${source}: a pair ends in .cu (GPU) or .cpp (host), not in '${extension}'; rename the file")
      endif()
      if(NOT name MATCHES "^[a-z][a-z0-9_]*$")
        message(FATAL_ERROR "${source}: bad pair name '${name}'; the file's name is the target's and the symbol's, so it must match "
                            "[a-z][a-z0-9_]*; rename the file")
      endif()
      list(FIND names "${name}" position)
      if(NOT position EQUAL -1)
        list(GET found ${position} first)
        message(FATAL_ERROR "${source}: duplicate pair name '${name}'; ${first} has it already; pair names are unique over all "
                            "chapters, so rename one of them")
      endif()
      list(APPEND names "${name}")
      list(APPEND found "${source}")
    endforeach()
  endforeach()
  list(SORT found)
  if(NOT "${AISP_CHOSEN}" STREQUAL "")
    aisp_choose_pairs(found trouble "${AISP_CHOSEN}" "${found}")
    if(trouble)
      message(FATAL_ERROR "AISP_PAIRS: ${trouble}")
    endif()
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# aisp_glob_regex(OUT GLOB): the regular expression of a glob with *, ? and [...].
function(aisp_glob_regex out glob)
  string(REGEX REPLACE "([.+()^$|{}\\])" "\\\\\\1" regex "${glob}")
  string(REPLACE "[!" "[^" regex "${regex}")
  string(REPLACE "*" ".*" regex "${regex}")
  string(REPLACE "?" "." regex "${regex}")
  set(${out} "^${regex}$" PARENT_SCOPE)
endfunction()

# aisp_names_pair(OUT TARGET CHAPTER NAME): whether the target, as --targets takes it, names the pair.
function(aisp_names_pair out target chapter name)
  set(of_chapter "${target}")
  set(of_name "*")
  if(target MATCHES "^([^:]*):(.*)$")
    set(of_chapter "${CMAKE_MATCH_1}")
    set(of_name "${CMAKE_MATCH_2}")
  endif()
  if(of_chapter MATCHES "^(ch)?([0-9][0-9]?)$")
    string(REGEX REPLACE "^([0-9])$" "0\\1" number "${CMAKE_MATCH_2}")
    set(of_chapter "ch${number}")
  endif()
  aisp_glob_regex(chapter_regex "${of_chapter}")
  aisp_glob_regex(name_regex "${of_name}")
  set(named FALSE)
  if(target STREQUAL "all" OR (chapter MATCHES "${chapter_regex}" AND name MATCHES "${name_regex}")
     OR (NOT target MATCHES ":" AND name MATCHES "${chapter_regex}"))
    set(named TRUE)
  endif()
  set(${out} ${named} PARENT_SCOPE)
endfunction()

# aisp_choose_pairs(OUT TROUBLE TARGETS SOURCES): of the files those that the targets name, which commas separate. TROUBLE: what is wrong
# with the targets, in one line, else empty.
function(aisp_choose_pairs out trouble targets sources)
  set(chosen)
  set(wrong "")
  string(REGEX MATCHALL "[^, ]+" wanted "${targets}")
  if(NOT wanted)
    set(wrong "the list is empty")
  endif()
  foreach(target IN LISTS wanted)
    set(any FALSE)
    foreach(source IN LISTS sources)
      cmake_path(GET source PARENT_PATH folder)
      cmake_path(GET folder FILENAME chapter)
      cmake_path(GET source STEM LAST_ONLY name)
      aisp_names_pair(named "${target}" "${chapter}" "${name}")
      if(named)
        set(any TRUE)
        list(APPEND chosen "${source}")
      endif()
    endforeach()
    if(NOT any AND NOT wrong)
      set(wrong "no pair is called '${target}'")
    endif()
  endforeach()
  if(wrong)
    list(TRANSFORM sources REPLACE "^.*/([^/]+)/[^/]+$" "\\1" OUTPUT_VARIABLE chapters)
    list(REMOVE_DUPLICATES chapters)
    list(JOIN chapters ", " chapters)
    string(APPEND wrong "; there are pairs in ${chapters}")
  endif()
  list(REMOVE_DUPLICATES chosen)
  list(SORT chosen)
  set(${out} "${chosen}" PARENT_SCOPE)
  set(${trouble} "${wrong}" PARENT_SCOPE)
endfunction()

# aisp_read_family(OUT SOURCE): CHAPTER!NAME!SOURCE of each pair that a file of the folder selftest declares.
function(aisp_read_family out source)
  if(NOT CMAKE_SCRIPT_MODE_FILE)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
  endif()
  file(READ "${source}" text)
  string(REGEX MATCH "\nnamespace aisp::(ch[0-9][0-9]) {" found "${text}")
  set(chapter "${CMAKE_MATCH_1}")
  string(REGEX MATCHALL "\nextern constinit const selftest::Case [A-Za-z0-9_]+" rows "${text}")
  if(NOT chapter OR NOT rows)
    message(FATAL_ERROR "${source}: a family of the self-test declares its pairs as 'extern constinit const selftest::Case name', "
                        "each at the start of a line, in one namespace aisp::chNN")
  endif()
  list(TRANSFORM rows REPLACE "^.* " "${chapter}!")
  list(TRANSFORM rows APPEND "!${source}")
  set(${out} "${rows}" PARENT_SCOPE)
endfunction()

# aisp_list_pairs(OUT FOLDER...): CHAPTER!NAME!SOURCE of all pairs in the order of the registry, by chapter and name.
function(aisp_list_pairs out)
  aisp_find_pairs(sources ${ARGN})
  set(keyed)
  foreach(source IN LISTS sources)
    if(source MATCHES "/selftest/[^/]+/[^/]+$")
      aisp_read_family(family "${source}")
      list(APPEND keyed ${family})
      continue()
    endif()
    get_filename_component(directory "${source}" DIRECTORY)
    get_filename_component(chapter "${directory}" NAME)
    get_filename_component(name "${source}" NAME_WLE)
    # '!' sorts before every character of a name, so that 'scan' comes before 'scan_wide' whatever the extension.
    list(APPEND keyed "${chapter}!${name}!${source}")
  endforeach()
  list(SORT keyed)
  set(${out} "${keyed}" PARENT_SCOPE)
endfunction()

# aisp_sorted_pairs(OUT FOLDER...): the file of each pair in the order of the registry; that of a family once for each of its pairs.
function(aisp_sorted_pairs out)
  aisp_list_pairs(keyed ${ARGN})
  list(TRANSFORM keyed REPLACE "^[^!]*![^!]*!" "")
  set(${out} "${keyed}" PARENT_SCOPE)
endfunction()

# aisp_split_pair(PAIR CHAPTER NAME SOURCE SYMBOL DECLARATION): the parts of one of aisp_list_pairs, the expression for its Pair and
# the declaration behind it. A pair of the folder selftest is part of a selftest::Case.
function(aisp_split_pair pair chapter_out name_out source_out symbol_out declaration_out)
  string(REGEX MATCH "^([^!]*)!([^!]*)!(.*)$" found "${pair}")
  set(chapter "${CMAKE_MATCH_1}")
  set(name "${CMAKE_MATCH_2}")
  set(source "${CMAKE_MATCH_3}")
  set(symbol "aisp::${chapter}::${name}")
  set(type "Pair")
  if(source MATCHES "/selftest/[^/]+/[^/]+$")
    string(APPEND symbol ".pair")
    set(type "selftest::Case")
  endif()
  set(${chapter_out} "${chapter}" PARENT_SCOPE)
  set(${name_out} "${name}" PARENT_SCOPE)
  set(${source_out} "${source}" PARENT_SCOPE)
  set(${symbol_out} "${symbol}" PARENT_SCOPE)
  set(${declaration_out} "namespace aisp::${chapter} { extern const ${type} ${name}; }" PARENT_SCOPE)
endfunction()

# aisp_write_if_changed(PATH TEXT): so that configuring again rebuilds nothing.
function(aisp_write_if_changed path text)
  set(present "")
  if(EXISTS "${path}")
    file(READ "${path}" present)
  endif()
  if(NOT present STREQUAL text)
    file(WRITE "${path}" "${text}")
  endif()
endfunction()

# aisp_generate_registry(OUT_CPP FOLDER...): writes the definitions of aisp::pair::registry() for the pairs below the folders, and of
# not_built() for those that AISP_CHOSEN leaves out.
function(aisp_generate_registry out_cpp)
  aisp_list_pairs(pairs ${ARGN})
  set(chosen "${AISP_CHOSEN}")
  set(left_out)
  if(NOT chosen STREQUAL "")
    set(AISP_CHOSEN "")
    aisp_list_pairs(left_out ${ARGN})
    list(REMOVE_ITEM left_out ${pairs})
  endif()
  set(declarations "")
  set(entries "")
  list(LENGTH pairs count)
  foreach(pair IN LISTS pairs)
    aisp_split_pair("${pair}" chapter name source symbol declaration)
    if(AISP_SOURCE_ROOT)
      file(RELATIVE_PATH source "${AISP_SOURCE_ROOT}" "${source}")
    endif()
    string(APPEND declarations "${declaration}\n")
    string(APPEND entries "    Entry{\"${chapter}\", \"${name}\", \"${source}\", &${symbol}},\n")
  endforeach()

  set(names_left_out "")
  list(LENGTH left_out count_left_out)
  foreach(pair IN LISTS left_out)
    aisp_split_pair("${pair}" chapter name source symbol declaration)
    if(AISP_SOURCE_ROOT)
      file(RELATIVE_PATH source "${AISP_SOURCE_ROOT}" "${source}")
    endif()
    string(APPEND names_left_out "    NotBuilt{\"${chapter}\", \"${name}\", \"${source}\"},\n")
  endforeach()

  set(cases "")
  if(declarations MATCHES "selftest::Case")
    set(cases "#include <aisp/selftest.hpp>\n")
  endif()
  set(text "// Written by cmake/registry.cmake from the files in the chapter folders; changes here are lost.
#include \"pair/registry.hpp\"
${cases}
#include <array>

${declarations}
namespace aisp::pair {
namespace {

constexpr std::array<Entry, ${count}> table{{
${entries}}};
constexpr std::array<NotBuilt, ${count_left_out}> pairs_left_out{{
${names_left_out}}};

constexpr bool good_name(std::string_view text) {
  if (text.empty() || text[0] < 'a' || text[0] > 'z') return false;
  for (const char c : text)
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  return true;
}

constexpr bool good_names() {
  for (const Entry& entry : table)
    if (!good_name(entry.chapter) || !good_name(entry.name)) return false;
  return true;
}

constexpr bool unique_names() {
  for (std::size_t i = 0; i < table.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (table[i].name == table[j].name) return false;
  return true;
}

constexpr bool sorted() {
  for (std::size_t i = 1; i < table.size(); ++i)
    if (table[i].chapter < table[i - 1].chapter || (table[i].chapter == table[i - 1].chapter && table[i].name < table[i - 1].name))
      return false;
  return true;
}

static_assert(good_names(), \"names of chapters and pairs match [a-z][a-z0-9_]*\");
static_assert(unique_names(), \"a pair's name occurs once over all chapters\");
static_assert(sorted(), \"the table is sorted by chapter, then name\");

}  // namespace

std::span<const Entry> registry() { return table; }
std::span<const NotBuilt> not_built() { return pairs_left_out; }
std::string_view chosen_at_build() { return \"${chosen}\"; }

}  // namespace aisp::pair
")
  aisp_write_if_changed("${out_cpp}" "${text}")
endfunction()
