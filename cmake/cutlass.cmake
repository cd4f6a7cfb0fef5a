# SPDX-License-Identifier: Apache-2.0
# The target aisp_cutlass, which is in no other: libaisp_cutlass.so, CUTLASS's kernels as bars beside ours, which the executable opens at run
# time (src/machine/library/cutlass.cpp). Headers: those of AISP_CUTLASS_INCLUDE, of CUTLASS_HOME in the environment, or what setup.sh put
# into .cutlass. Where there are none, the target says so and builds nothing.
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
  add_custom_target(aisp_cutlass COMMAND "${CMAKE_COMMAND}" -E echo "libaisp_cutlass.so is not built: ${cutlass_absence}" VERBATIM)
  return()
endif()

# Each architecture is a target of its own. NDEBUG in every kind of build: around CUTLASS's asserts, which are calls, the assembler lets no
# wgmma run on.
function(aisp_add_cutlass_kernels architecture)
  set(name aisp_cutlass_${architecture})
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${ARGN})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES ${architecture}-real POSITION_INDEPENDENT_CODE ON
                        CUDA_VISIBILITY_PRESET hidden)
  target_compile_definitions(${name} PRIVATE NDEBUG)
  # Host code here only plans and launches, and optimizing these templates takes a quarter of the compiler's time.
  target_compile_options(${name} PRIVATE "$<$<NOT:$<BOOL:${AISP_SANITIZE}>>:-Xcompiler=-O1>")
  target_include_directories(${name} PRIVATE src)
  target_include_directories(${name} SYSTEM PRIVATE "${AISP_CUTLASS_INCLUDE}")
  target_link_libraries(${name} PRIVATE aisp_api)
  target_link_libraries(aisp_cutlass PRIVATE ${name})
endfunction()

add_library(aisp_cutlass MODULE EXCLUDE_FROM_ALL src/libraries/cutlass_table.cpp src/pair/error.cpp)
set_target_properties(aisp_cutlass PROPERTIES LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY Static CXX_VISIBILITY_PRESET hidden INSTALL_RPATH ""
                      LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/cutlass.map")
target_compile_definitions(aisp_cutlass PRIVATE "AISP_CUTLASS_VERSION=\"${cutlass_version}\"")
target_include_directories(aisp_cutlass PRIVATE src)
target_link_libraries(aisp_cutlass PRIVATE aisp_api "$<BUILD_INTERFACE:aisp_warnings>" Threads::Threads ${CMAKE_DL_LIBS} rt)
target_link_options(aisp_cutlass PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/cutlass.map" -Wl,--no-undefined -s)
aisp_add_cutlass_kernels(90a src/libraries/cutlass_sm90.cu src/libraries/cutlass_multistage.cu)
if(CMAKE_CUDA_ARCHITECTURES MATCHES "(^|;)100a")
  target_compile_definitions(aisp_cutlass PRIVATE AISP_CUTLASS_SM100)
  aisp_add_cutlass_kernels(100a src/libraries/cutlass_sm100.cu)
endif()
