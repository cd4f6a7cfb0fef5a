# SPDX-License-Identifier: Apache-2.0
include_guard()
include("${CMAKE_CURRENT_LIST_DIR}/registry.cmake")

# aisp_build_pairs(NAME SOURCES): the target NAME, objects, so that the linker cannot drop any.
function(aisp_build_pairs name sources)
  if(NOT sources)
    set(sources "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_empty.cpp")
    file(CONFIGURE OUTPUT "${sources}" CONTENT "// There are no pairs yet.\n")
  endif()
  add_library(${name} OBJECT ${sources})
  # A pair sees the public headers, chapters/shared and its own folder, nothing of src.
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/chapters/shared")
  target_link_libraries(${name} PRIVATE aisp_api aisp_warnings)
  # Profilers and compute-sanitizer point at source lines with it; it costs space, so only pairs have it.
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>")
  if(NOT AISP_SANITIZE)
    target_compile_options(${name} PRIVATE -O3)
  endif()
endfunction()

# aisp_add_pairs(NAME FOLDER [FURTHER...]): the pairs below FOLDER and their registry, as two targets: NAME and NAME_registry. The
# pairs of further folders are in the registry too, but built elsewhere.
function(aisp_add_pairs name folder)
  aisp_find_pairs(sources "${folder}")
  aisp_check_pairs(${sources})
  set(folders "${folder}" ${ARGN})
  list(JOIN folders "|" all_folders)
  set(table "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_registry.cpp")
  set(AISP_SOURCE_ROOT "${PROJECT_SOURCE_DIR}")
  aisp_generate_registry("${table}" ${folders})

  set(digests "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_digests.cpp")
  list(TRANSFORM folders APPEND "/*.cuh" OUTPUT_VARIABLE device_headers)
  list(TRANSFORM folders APPEND "/*.hpp" OUTPUT_VARIABLE host_headers)
  aisp_find_pairs(listed ${folders})
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${device_headers} ${host_headers} "${PROJECT_SOURCE_DIR}/include/aisp/device/*"
       "${PROJECT_SOURCE_DIR}/include/aisp/libraries/*" "${PROJECT_SOURCE_DIR}/include/aisp/graph.hpp")
  add_custom_command(
    OUTPUT "${digests}"
    COMMAND "${CMAKE_COMMAND}" "-DAISP_SOURCE_DIR=${PROJECT_SOURCE_DIR}" "-DAISP_FOLDERS=${all_folders}" "-DAISP_OUT=${digests}"
            -P "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/digests.cmake"
    DEPENDS ${listed} ${headers} "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/digests.cmake"
    COMMENT "Digests of the pairs' sources"
    VERBATIM)
  add_library(${name}_registry OBJECT "${table}" "${digests}")
  target_include_directories(${name}_registry PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${name}_registry PRIVATE aisp_api aisp_warnings)

  aisp_build_pairs(${name} "${sources}")
endfunction()

# aisp_link(TARGET PAIRS): everything an executable with a registry needs.
function(aisp_link target pairs)
  target_link_libraries(${target} PRIVATE ${pairs} ${pairs}_registry aisp_core aisp_warnings)
  if(TARGET aisp_selftest)
    target_link_libraries(${target} PRIVATE aisp_selftest aisp_selftest_registry)
  endif()
endfunction()
