# SPDX-License-Identifier: Apache-2.0
# The CUDA toolkit's folders: cuda_includes, for the host compiler, and aisp_toolkit_libraries, with what is opened at run time.
find_package(CUDAToolkit 13.0 REQUIRED)
# CMake 3.25 knows no C++20 for nvcc and drops the standard without a word unless it is told the option.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
get_filename_component(cuda_home "${CUDAToolkit_BIN_DIR}" DIRECTORY)
set(aisp_toolkit_libraries "${CUDAToolkit_LIBRARY_DIR}" "${cuda_home}/extras/CUPTI/lib64")
set(cuda_includes ${CUDAToolkit_INCLUDE_DIRS})
foreach(folder IN ITEMS "${CUDAToolkit_INCLUDE_DIRS}/cccl" "${cuda_home}/extras/CUPTI/include")
  if(IS_DIRECTORY "${folder}")
    list(APPEND cuda_includes "${folder}")
  endif()
endforeach()
