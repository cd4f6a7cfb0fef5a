# SPDX-License-Identifier: Apache-2.0
include_guard()
include("${CMAKE_CURRENT_LIST_DIR}/registry.cmake")
# The distribution's own first: that is where the tests' python3-jsonschema is installed.
find_program(AISP_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(AISP_PYTHON python3 REQUIRED)
set(AISP_CODE_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/code")

# aisp_digest_of(OUT SOURCE): where the build writes what is known of a pair's code (cmake/code/digest.py).
function(aisp_digest_of out source)
  file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${source}")
  set(${out} "${PROJECT_BINARY_DIR}/generated/code/${path}.txt" PARENT_SCOPE)
endfunction()

# A recorded expectation names the digest of the code that was measured; when that changes, the expectation is stale.
function(aisp_add_digests name sources)
  file(GLOB scripts CONFIGURE_DEPENDS "${AISP_CODE_SCRIPTS}/*_code.py")
  set(digests)
  foreach(source IN LISTS sources)
    aisp_digest_of(digest "${source}")
    list(APPEND digests "${digest}")
    file(RELATIVE_PATH path "${CMAKE_CURRENT_SOURCE_DIR}" "${source}")
    string(REPLACE "." "[.]" pattern "/${path}.o")
    set(object "$<FILTER:$<TARGET_OBJECTS:${name}>,INCLUDE,${pattern}(bj)?$>")
    get_filename_component(folder "${digest}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(
      OUTPUT "${digest}"
      COMMAND "${AISP_PYTHON}" -B "${AISP_CODE_SCRIPTS}/digest.py" "${PROJECT_SOURCE_DIR}" "${source}" "${object}" "${digest}"
      DEPENDS "${source}" "${object}" "${AISP_CODE_SCRIPTS}/digest.py" ${scripts}
      COMMENT "Digest of ${path}"
      VERBATIM)
  endforeach()
  add_custom_target(${name}_digests DEPENDS ${digests})
endfunction()

# aisp_build_pairs(NAME SOURCES): the target NAME, objects, so that the linker cannot drop any.
function(aisp_build_pairs name sources)
  set(compiled ${sources})
  if(NOT sources)
    set(compiled "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_empty.cpp")
    file(CONFIGURE OUTPUT "${compiled}" CONTENT "// There are no pairs yet.\n")
  endif()
  add_library(${name} OBJECT ${compiled})
  aisp_add_digests(${name} "${sources}")
  # A pair sees the public headers, chapters/shared and its own folder, nothing of src.
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/chapters/shared")
  target_link_libraries(${name} PRIVATE aisp_api aisp_warnings)
  # Profilers and compute-sanitizer point at source lines with it; it costs space, so only pairs have it. Digests are of the
  # instructions as they are.
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>" "$<$<COMPILE_LANGUAGE:CUDA>:-no-compress>")
  if(NOT AISP_SANITIZE)
    target_compile_options(${name} PRIVATE -O3)
  endif()
endfunction()

# aisp_add_pairs(NAME FOLDER [FURTHER...]): the pairs below FOLDER and their registry, as two targets: NAME and NAME_registry. The
# pairs of further folders are in the registry too, but built elsewhere.
function(aisp_add_pairs name folder)
  aisp_find_pairs(sources "${folder}")
  aisp_check_pairs(${sources})
  aisp_build_pairs(${name} "${sources}")

  set(folders "${folder}" ${ARGN})
  set(table "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_registry.cpp")
  set(AISP_SOURCE_ROOT "${PROJECT_SOURCE_DIR}")
  aisp_generate_registry("${table}" ${folders})

  set(digests)
  aisp_sorted_pairs(listed ${folders})
  foreach(source IN LISTS listed)
    aisp_digest_of(digest "${source}")
    list(APPEND digests "${digest}")
  endforeach()
  list(TRANSFORM folders APPEND "/*.cuh" OUTPUT_VARIABLE device_headers)
  list(TRANSFORM folders APPEND "/*.hpp" OUTPUT_VARIABLE host_headers)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${device_headers} ${host_headers})
  set(index "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_code.cpp")
  add_custom_command(
    OUTPUT "${index}"
    COMMAND "${AISP_PYTHON}" -B "${AISP_CODE_SCRIPTS}/index.py" "${PROJECT_SOURCE_DIR}" "${index}" ${digests}
    DEPENDS ${digests} "${AISP_CODE_SCRIPTS}/index.py"
    COMMENT "Table of the pairs' code"
    VERBATIM)
  # It brings in the files' text, of which the compiler does not know.
  set_source_files_properties("${index}" PROPERTIES OBJECT_DEPENDS "${listed};${headers}")
  add_library(${name}_registry OBJECT "${table}" "${index}")
  target_include_directories(${name}_registry PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${name}_registry PRIVATE aisp_api aisp_warnings)
endfunction()

# aisp_link(TARGET PAIRS): everything an executable with a registry needs.
function(aisp_link target pairs)
  target_link_libraries(${target} PRIVATE ${pairs} ${pairs}_registry aisp_core aisp_warnings)
  if(TARGET aisp_selftest)
    target_link_libraries(${target} PRIVATE aisp_selftest aisp_selftest_registry)
  endif()
endfunction()
