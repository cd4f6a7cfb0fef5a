# SPDX-License-Identifier: Apache-2.0
include_guard()
include("${CMAKE_CURRENT_LIST_DIR}/registry.cmake")
# The distribution's own first: that is where the tests' python3-jsonschema is installed.
find_program(AISP_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(AISP_PYTHON python3)
if(NOT AISP_PYTHON)
  message(FATAL_ERROR "python3 was not found, which the build of pairs needs; install it (apt-get install python3) or name it with -DAISP_PYTHON=...")
endif()
set(AISP_CODE_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/code")

# aisp_root_of(OUT FOLDER...): what the paths of the pairs in the folders are relative to.
function(aisp_root_of out)
  set(root "${PROJECT_SOURCE_DIR}")
  foreach(folder IN LISTS ARGN)
    cmake_path(IS_PREFIX PROJECT_SOURCE_DIR "${folder}" inside)
    if(NOT inside)
      get_filename_component(root "${ARGV1}" DIRECTORY)
    endif()
  endforeach()
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

# aisp_digest_of(OUT ROOT SOURCE): where the build writes what is known of a pair's code (cmake/code/digest.py).
function(aisp_digest_of out root source)
  file(RELATIVE_PATH path "${root}" "${source}")
  set(${out} "${PROJECT_BINARY_DIR}/generated/code/${path}.txt" PARENT_SCOPE)
endfunction()

# aisp_device_linked(OUT SOURCES): the files of pairs whose kernels launch others, and so include <aisp/device_runtime.hpp>.
function(aisp_device_linked out sources)
  set(found)
  foreach(source IN LISTS sources)
    file(STRINGS "${source}" includes REGEX "^#include <aisp/device_runtime[.]hpp>")
    if(includes)
      list(APPEND found "${source}")
    endif()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

# aisp_object_of(OUT NAME SOURCE): the object file that the target NAME compiles of a pair.
function(aisp_object_of out name source)
  get_filename_component(file "${source}" NAME)
  get_filename_component(folder "${source}" DIRECTORY)
  get_filename_component(chapter "${folder}" NAME)
  string(REPLACE "." "[.]" pattern "/${chapter}/${file}.o")
  set(${out} "$<FILTER:$<TARGET_OBJECTS:${name}>,INCLUDE,${pattern}(bj)?$>" PARENT_SCOPE)
endfunction()

# aisp_linked_object_of(OUT ROOT SOURCE): where the build writes such a pair's linked device code.
function(aisp_linked_object_of out root source)
  file(RELATIVE_PATH path "${root}" "${source}")
  set(${out} "${PROJECT_BINARY_DIR}/generated/device/${path}.o" PARENT_SCOPE)
endfunction()

# aisp_link_device_code(NAME ROOT SOURCES): compiles these pairs of the target NAME to relocatable device code, and links each with a
# device runtime of its own, whose symbols no other object sees: pairs stay apart.
function(aisp_link_device_code name root sources)
  set(host "$<$<BOOL:${CMAKE_CUDA_HOST_COMPILER}>:-ccbin=${CMAKE_CUDA_HOST_COMPILER}>")
  set(architectures)
  foreach(architecture IN LISTS AISP_CUDA_ARCHITECTURES)
    if(NOT architecture MATCHES "-virtual$")
      string(REGEX REPLACE "-real$" "" number "${architecture}")
      list(APPEND architectures "--generate-code=arch=compute_${number},code=sm_${number}")
    endif()
  endforeach()
  foreach(source IN LISTS sources)
    file(RELATIVE_PATH symbol "${root}" "${source}")
    string(MAKE_C_IDENTIFIER "${symbol}" symbol)
    set_property(SOURCE "${source}" APPEND PROPERTY COMPILE_OPTIONS -rdc=true "-DAISP_DEVICE_RUNTIME=${symbol}")
    aisp_object_of(object ${name} "${source}")
    aisp_linked_object_of(linked "${root}" "${source}")
    get_filename_component(folder "${linked}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(
      OUTPUT "${linked}"
      COMMAND "${CMAKE_CUDA_COMPILER}" ${host} -dlink -no-compress ${architectures} "${object}" -lcudadevrt -o "${linked}.alone"
      COMMAND "${CMAKE_CXX_COMPILER}" -r -nostdlib "${linked}.alone" "${CUDAToolkit_LIBRARY_DIR}/libcudadevrt.a" -o "${linked}"
      COMMAND "${CMAKE_OBJCOPY}" --wildcard --localize-symbol=*_cuda_device_runtime_cu_* --localize-symbol=cudart*
              --localize-symbol=__CNPRT_* "${linked}"
      DEPENDS "${object}"
      COMMAND_EXPAND_LISTS
      COMMENT "Device code of ${linked}"
      VERBATIM)
    target_link_libraries(${name} INTERFACE "${linked}")
  endforeach()
endfunction()

# A recorded expectation names the digest of the code that was measured; when that changes, the expectation is stale.
function(aisp_add_digests name root sources)
  file(GLOB scripts CONFIGURE_DEPENDS "${AISP_CODE_SCRIPTS}/*_code.py")
  aisp_device_linked(device_linked "${sources}")
  set(digests)
  foreach(source IN LISTS sources)
    aisp_digest_of(digest "${root}" "${source}")
    list(APPEND digests "${digest}")
    # Another executable of this folder has the pair too, of the same code.
    get_source_file_property(is_made "${digest}" GENERATED)
    if(is_made)
      continue()
    endif()
    set(linked)
    if(source IN_LIST device_linked)
      aisp_linked_object_of(linked "${root}" "${source}")
    endif()
    get_filename_component(file "${source}" NAME)
    get_filename_component(folder "${source}" DIRECTORY)
    get_filename_component(chapter "${folder}" NAME)
    get_filename_component(folder "${folder}" DIRECTORY)
    set(shared "${folder}/shared")
    if(AISP_SHARED)
      set(shared "${AISP_SHARED}")
    endif()
    aisp_object_of(object ${name} "${source}")
    get_filename_component(written "${digest}" DIRECTORY)
    file(MAKE_DIRECTORY "${written}")
    add_custom_command(
      OUTPUT "${digest}"
      COMMAND "${AISP_PYTHON}" -B "${AISP_CODE_SCRIPTS}/digest.py" --root "${root}" --api "${AISP_API_INCLUDE}" --shared "${shared}"
              "${source}" "${object}" "${digest}" ${linked}
      DEPENDS "${source}" "${object}" ${linked} "${AISP_CODE_SCRIPTS}/digest.py" ${scripts}
      COMMENT "Digest of ${chapter}/${file}"
      VERBATIM)
  endforeach()
  add_custom_target(${name}_digests DEPENDS ${digests})
endfunction()

# aisp_compile_as_pairs(TARGET): the languages and architectures of pairs, whatever the project around them uses.
function(aisp_compile_as_pairs target)
  set_target_properties(${target} PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CUDA_STANDARD 20
                        CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF CUDA_ARCHITECTURES "${AISP_CUDA_ARCHITECTURES}"
                        CUDA_RUNTIME_LIBRARY Static INTERPROCEDURAL_OPTIMIZATION OFF
                        EXPORT_COMPILE_COMMANDS ON)  # for scripts/check-pair
  # By itself nvcc leaves instructions uncompressed, which are four times as large.
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--compress-mode=size>")
  target_link_libraries(${target} PRIVATE aisp_api "$<TARGET_NAME_IF_EXISTS:aisp_warnings>")
endfunction()

# aisp_build_pairs(NAME KIND SOURCES FOLDER...): the target NAME, a library of the KIND, of pairs in the folders.
function(aisp_build_pairs name kind sources)
  set(compiled ${sources})
  if(NOT sources)
    set(compiled "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_empty.cpp")
    file(CONFIGURE OUTPUT "${compiled}" CONTENT "// There are no pairs yet.\n")
  endif()
  add_library(${name} ${kind} ${compiled})
  aisp_root_of(root ${ARGN})
  aisp_device_linked(device_linked "${sources}")
  aisp_link_device_code(${name} "${root}" "${device_linked}")
  aisp_add_digests(${name} "${root}" "${sources}")
  # A pair sees the public headers, the folder shared beside its own and its own, nothing of src.
  list(TRANSFORM ARGN APPEND "/shared" OUTPUT_VARIABLE shared)
  if(AISP_SHARED)
    set(shared "${AISP_SHARED}")
  endif()
  target_include_directories(${name} PRIVATE ${shared})
  aisp_compile_as_pairs(${name})
  # Profilers and compute-sanitizer point at source lines with it; it costs space, so only pairs have it.
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>")
  if(NOT AISP_SANITIZE)
    target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O3>")
  endif()
  # The place of a loop relative to lines of 64 bytes may decide a fifth of its time, and equal code must be equally fast. For
  # host pairs alone: the host code in kernels' files only queues their work.
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-falign-functions=64;-falign-loops=64>")
endfunction()

# aisp_build_linkable(OUT FOLDER...): builds the kernels of FOLDER/chapter/lto/*.cu to be linked at run time, and lists SOURCE=FATBIN for
# index.py. The fatbins hold what every architecture is made of, whatever this build's are: LTO IR and, for links without it, PTX.
function(aisp_build_linkable out)
  set(listed)
  set(host "$<$<BOOL:${CMAKE_CUDA_HOST_COMPILER}>:-ccbin=${CMAKE_CUDA_HOST_COMPILER}>")
  foreach(folder IN LISTS ARGN)
    file(GLOB sources CONFIGURE_DEPENDS "${folder}/*/lto/*.cu")
    if(NOT AISP_CHOSEN STREQUAL "")
      list(FILTER sources INCLUDE REGEX "/(${linking_chapters})/lto/")
    endif()
    foreach(source IN LISTS sources)
      file(RELATIVE_PATH name "${folder}" "${source}")
      set(fatbin "${CMAKE_CURRENT_BINARY_DIR}/generated/linkable/${name}.fatbin")
      get_filename_component(place "${fatbin}" DIRECTORY)
      get_filename_component(chapter "${source}" DIRECTORY)
      get_filename_component(chapter "${chapter}" DIRECTORY)
      file(MAKE_DIRECTORY "${place}")
      add_custom_command(
        OUTPUT "${fatbin}"
        COMMAND "${CMAKE_CUDA_COMPILER}" ${host} -std=c++20 -O3 --expt-relaxed-constexpr -rdc=true -fatbin
                --generate-code=arch=compute_80,code=lto_80 --generate-code=arch=compute_80,code=compute_80 -MD -MF "${fatbin}.d" -MT "${fatbin}"
                "-I${AISP_API_INCLUDE}" "-I${chapter}" "-I${folder}/shared" "${source}" -o "${fatbin}"
        DEPENDS "${source}"
        DEPFILE "${fatbin}.d"
        COMMAND_EXPAND_LISTS
        COMMENT "Kernels to link at run time: ${name}"
        VERBATIM)
      list(APPEND listed "${name}=${fatbin}")
    endforeach()
  endforeach()
  set(${out} "${listed}" PARENT_SCOPE)
endfunction()

# aisp_add_pairs(NAME FOLDER... [NUMBERED] [SHARED PLACE] [CHOSEN TARGETS]): the pairs below the folders and their registry, as two targets:
# NAME_pairs, objects, so that the linker cannot drop any, and NAME_registry. Those of the folder selftest are in the registry too, but built
# for everybody.
# NUMBERED: chapters are called ch and two digits. SHARED: the folder of their common headers, where it is not FOLDER/shared. CHOSEN: only
# these are built, as in "ch01,ch05:mmap"; the executable knows the names of the others.
function(aisp_add_pairs name)
  cmake_parse_arguments(PARSE_ARGV 1 given "NUMBERED" "SHARED;CHOSEN" "")
  set(folders)
  foreach(folder IN LISTS given_UNPARSED_ARGUMENTS)
    get_filename_component(folder "${folder}" ABSOLUTE)
    if(NOT IS_DIRECTORY "${folder}")
      message(FATAL_ERROR "aisp_add_pairs(${name}): there is no folder ${folder}")
    endif()
    list(APPEND folders "${folder}")
  endforeach()
  if(NOT folders)
    message(FATAL_ERROR "aisp_add_pairs(${name}): name the folder of the pairs, as in aisp_add_pairs(${name} kernels)")
  endif()
  set(AISP_NUMBERED ${given_NUMBERED})
  set(AISP_CHOSEN "${given_CHOSEN}")
  set(AISP_SHARED)
  if(given_SHARED)
    get_filename_component(AISP_SHARED "${given_SHARED}" ABSOLUTE)
  endif()
  set(built ${folders})
  list(FILTER built EXCLUDE REGEX "/selftest$")
  aisp_find_pairs(sources ${built})
  aisp_build_pairs(${name}_pairs OBJECT "${sources}" ${built})

  set(table "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_registry.cpp")
  aisp_root_of(AISP_SOURCE_ROOT ${built})
  aisp_generate_registry("${table}" ${folders})

  set(digests)
  aisp_sorted_pairs(listed ${folders})
  foreach(source IN LISTS listed)
    aisp_digest_of(digest "${AISP_SOURCE_ROOT}" "${source}")
    list(APPEND digests "${digest}")
  endforeach()
  list(TRANSFORM folders APPEND "/*.cuh" OUTPUT_VARIABLE device_headers)
  list(TRANSFORM folders APPEND "/*.hpp" OUTPUT_VARIABLE host_headers)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${device_headers} ${host_headers})
  list(TRANSFORM sources REPLACE "^.*/([^/]+)/[^/]+$" "\\1" OUTPUT_VARIABLE linking_chapters)
  list(REMOVE_DUPLICATES linking_chapters)
  list(JOIN linking_chapters "|" linking_chapters)
  aisp_build_linkable(linkable ${built})
  list(TRANSFORM linkable REPLACE "^[^=]*=" "" OUTPUT_VARIABLE fatbins)
  set(index "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_code.cpp")
  add_custom_command(
    OUTPUT "${index}" "${index}.texts"
    COMMAND "${AISP_PYTHON}" -B "${AISP_CODE_SCRIPTS}/index.py" "${AISP_SOURCE_ROOT}" "${index}" ${digests} ${linkable}
    DEPENDS ${digests} ${listed} ${headers} ${fatbins} "${AISP_CODE_SCRIPTS}/index.py"
    COMMENT "Table of the pairs' code"
    VERBATIM)
  # It brings in bytes of which the compiler does not know.
  set_source_files_properties("${index}" PROPERTIES OBJECT_DEPENDS "${index}.texts;${fatbins}")
  add_library(${name}_registry OBJECT "${table}" "${index}")
  target_include_directories(${name}_registry PRIVATE "${AISP_REGISTRY_INCLUDE}")
  aisp_compile_as_pairs(${name}_registry)
endfunction()

# aisp_link(TARGET [NAME]): the executable TARGET with the pairs of aisp_add_pairs(NAME ...), which is TARGET unless given, and all of
# aisp's commands. A target that exists has a main of its own.
function(aisp_link target)
  set(pairs ${target} ${ARGN})
  list(GET pairs -1 pairs)
  if(NOT TARGET ${pairs}_registry)
    message(FATAL_ERROR "aisp_link(${target}): there are no pairs of that name; call aisp_add_pairs(${pairs} FOLDER) before it")
  endif()
  if(NOT TARGET ${target})
    add_executable(${target})
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY Static)
    target_link_libraries(${target} PRIVATE aisp_main)
  endif()
  # Libraries that are opened at run time are looked for in the toolkit too, so that no LD_LIBRARY_PATH is needed.
  get_target_property(path ${target} INSTALL_RPATH)
  if(NOT path)
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${aisp_toolkit_libraries}")
  endif()
  target_link_libraries(${target} PRIVATE ${pairs}_pairs ${pairs}_registry aisp_core "$<TARGET_NAME_IF_EXISTS:aisp_warnings>")
endfunction()
