# SPDX-License-Identifier: Apache-2.0
# aisp_warnings: what every target of this project is compiled with.
add_library(aisp_warnings INTERFACE)

# Designated initialisers that name only what differs are the style of this tree, hence no missing-field-initializers.
set(aisp_host_warnings -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overlapping copies in std::string's operator+ that are not there (GCC bug 105651).
  list(APPEND aisp_host_warnings -Wno-restrict)
endif()
set(aisp_cuda_host_warnings ${aisp_host_warnings})
set(aisp_cuda_warnings)
if(AISP_WARNINGS_AS_ERRORS)
  list(APPEND aisp_host_warnings -Werror)
  list(APPEND aisp_cuda_warnings -Werror=all-warnings)
  # nvcc's own generated host code is compiled with these too, so -Werror goes to the host compiler by name only.
  list(APPEND aisp_cuda_host_warnings -Werror)
endif()
list(JOIN aisp_cuda_host_warnings "," aisp_cuda_host_warnings)

target_compile_options(aisp_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${aisp_host_warnings};-Wpedantic>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${aisp_cuda_host_warnings};${aisp_cuda_warnings}>")

# Registers that spill and arrays that end up in local memory cost time that no line of the source shows. ptxas says so here, and with
# AISP_WARNINGS_AS_ERRORS that stops the build. Only on the architecture that results are recorded on: on others ptxas shares registers
# out differently, and gives a stack even to kernels that do nothing but trap there.
# Files that may spill by design, each with its reason; a pair that shows what spilling costs belongs here.
set(aisp_may_spill
    chapters/ch08/launch_bounds.cu   # its baseline spills: that is the lesson
    chapters/ch08/local_arrays.cu    # its baseline indexes an array at run time: that is the lesson
    chapters/ch08/loop_unrolling.cu  # a control that does the same
    chapters/ch14/lto_callbacks.cu   # calls through pointers save registers there: that is part of what they cost
    src/pair/memory/memory_gpu.cu)  # CUB's radix sort: not our code, and not timed
if(CMAKE_CUDA_ARCHITECTURES MATCHES "^90a(-real)?$")
  file(GLOB aisp_kernel_files CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}" "chapters/*/*.cu" "src/*/*.cu" "src/*/*/*.cu")
  list(REMOVE_ITEM aisp_kernel_files ${aisp_may_spill})
  set_property(SOURCE ${aisp_kernel_files} APPEND PROPERTY COMPILE_OPTIONS -Xptxas=--warn-on-spills,--warn-on-local-memory-usage)
endif()
