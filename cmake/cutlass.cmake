# SPDX-License-Identifier: Apache-2.0
# aisp_cutlass: the products by CUTLASS's templates (include/aisp/libraries/cutlass.hpp) where its headers are, else a refusal. Headers:
# those of AISP_CUTLASS_INCLUDE, of CUTLASS_HOME in the environment, or what setup.sh put into .cutlass. An empty AISP_CUTLASS_INCLUDE
# means without.
set(own_cutlass "${PROJECT_SOURCE_DIR}/.cutlass/include")
# Configures again when setup.sh brings or takes them.
file(GLOB ignored CONFIGURE_DEPENDS "${own_cutlass}/cutlass/version.h")
if(AISP_CUTLASS_INCLUDE AND NOT EXISTS "${AISP_CUTLASS_INCLUDE}/cutlass/version.h")
  unset(AISP_CUTLASS_INCLUDE CACHE)
endif()
find_path(AISP_CUTLASS_INCLUDE cutlass/version.h HINTS "$ENV{CUTLASS_HOME}/include" "$ENV{CUTLASS_HOME}" "${own_cutlass}" NO_DEFAULT_PATH
          DOC "Folder with CUTLASS's headers; empty: build without")

set(cutlass_absence "")
set(cutlass_version "")
if(NOT AISP_CUTLASS_INCLUDE)
  set(cutlass_absence "no headers (./setup.sh gets them, or set CUTLASS_HOME)")
else()
  foreach(part IN ITEMS MAJOR MINOR PATCH)
    file(STRINGS "${AISP_CUTLASS_INCLUDE}/cutlass/version.h" line REGEX "#define +CUTLASS_${part} ")
    string(REGEX REPLACE "[^0-9]" "" line "${line}")
    list(APPEND cutlass_version ${line})
  endforeach()
  list(JOIN cutlass_version "." cutlass_version)
  if(cutlass_version VERSION_LESS 4.0)
    set(cutlass_absence "${AISP_CUTLASS_INCLUDE} is CUTLASS ${cutlass_version}, older than 4.0")
  elseif(NOT CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)90a")
    set(cutlass_absence "its kernels are for sm_90a, which is not in AISP_CUDA_ARCHITECTURES")
  endif()
endif()

if(cutlass_absence)
  message(STATUS "CUTLASS: built without; ${cutlass_absence}")
  add_library(aisp_cutlass STATIC src/libraries/cutlass_absent.cpp)
  target_link_libraries(aisp_cutlass PRIVATE "$<BUILD_INTERFACE:aisp_warnings>")
else()
  message(STATUS "CUTLASS: ${cutlass_version} in ${AISP_CUTLASS_INCLUDE}")
  add_library(aisp_cutlass STATIC src/libraries/cutlass_bf16.cu src/libraries/cutlass_fp8.cu src/libraries/cutlass_version.cpp)
  # Its asserts are calls, around which the assembler lets no wgmma run on: NDEBUG in every kind of build.
  target_compile_definitions(aisp_cutlass PRIVATE NDEBUG)
  target_include_directories(aisp_cutlass SYSTEM PRIVATE "${AISP_CUTLASS_INCLUDE}")
  set_target_properties(aisp_cutlass PROPERTIES CUDA_ARCHITECTURES 90a-real)
endif()
target_include_directories(aisp_cutlass PRIVATE src)
target_link_libraries(aisp_cutlass PRIVATE aisp_api)
if(NOT AISP_SANITIZE)
  target_compile_options(aisp_cutlass PRIVATE -O3)
endif()
