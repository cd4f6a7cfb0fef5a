# SPDX-License-Identifier: Apache-2.0
include_guard()
include("${CMAKE_CURRENT_LIST_DIR}/registry.cmake")

# aisp_add_pairs(NAME FOLDER): the pairs below FOLDER and their registry, as two targets: NAME (objects, so that the linker cannot
# drop any) and NAME_registry.
function(aisp_add_pairs name folder)
  aisp_find_pairs(sources "${folder}")
  set(table "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_registry.cpp")
  set(AISP_SOURCE_ROOT "${PROJECT_SOURCE_DIR}")
  aisp_generate_registry("${table}" "${folder}")

  set(digests "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_digests.cpp")
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS "${folder}/*.cuh" "${folder}/*.hpp" "${PROJECT_SOURCE_DIR}/include/aisp/device/*"
       "${PROJECT_SOURCE_DIR}/include/aisp/libraries/*" "${PROJECT_SOURCE_DIR}/include/aisp/graph.hpp")
  add_custom_command(
    OUTPUT "${digests}"
    COMMAND "${CMAKE_COMMAND}" "-DAISP_SOURCE_DIR=${PROJECT_SOURCE_DIR}" "-DAISP_FOLDER=${folder}" "-DAISP_OUT=${digests}"
            -P "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/digests.cmake"
    DEPENDS ${sources} ${headers} "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/digests.cmake"
    COMMENT "Digests of the pairs' sources"
    VERBATIM)
  add_library(${name}_registry OBJECT "${table}" "${digests}")
  target_include_directories(${name}_registry PRIVATE "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${name}_registry PRIVATE aisp_api aisp_warnings)

  if(sources)
    add_library(${name} OBJECT ${sources})
  else()
    file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_empty.cpp" CONTENT "// There are no pairs yet.\n")
    add_library(${name} OBJECT "${CMAKE_CURRENT_BINARY_DIR}/generated/${name}_empty.cpp")
  endif()
  # A pair sees the public headers, chapters/shared and its own folder, nothing of src.
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/chapters/shared")
  target_link_libraries(${name} PRIVATE aisp_api aisp_warnings)
  # Profilers and compute-sanitizer point at source lines with it; it costs space, so only pairs have it.
  target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>")
  if(NOT AISP_SANITIZE)
    target_compile_options(${name} PRIVATE -O3)
  endif()
endfunction()

# aisp_link(TARGET PAIRS): everything an executable with a registry needs.
function(aisp_link target pairs)
  target_link_libraries(${target} PRIVATE ${pairs} ${pairs}_registry aisp_core aisp_warnings)
endfunction()
