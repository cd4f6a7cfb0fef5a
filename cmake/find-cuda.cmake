# SPDX-License-Identifier: Apache-2.0
# Chooses nvcc before project() looks for it: the user's choice first, then what setup.sh installed or what the machine has. An installed
# aisp says what it was built with (AISP_BUILT_WITH_CUDA).
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(AISP_NVCC nvcc
    HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin"
    PATHS "${CMAKE_CURRENT_SOURCE_DIR}/.cuda/bin" "${AISP_BUILT_WITH_CUDA}/bin" /usr/local/cuda/bin
    NO_CACHE)
  if(NOT AISP_NVCC AND AISP_BUILT_WITH_CUDA)
    message(FATAL_ERROR "aisp: nvcc was not found; set CUDA_HOME to a CUDA 13.0 or newer toolkit (aisp was built with ${AISP_BUILT_WITH_CUDA})")
  elseif(NOT AISP_NVCC)
    message(FATAL_ERROR "nvcc was not found; run ./setup.sh, which installs it, or set CUDA_HOME to a CUDA 13.0 or newer toolkit")
  endif()
  set(CMAKE_CUDA_COMPILER "${AISP_NVCC}" CACHE FILEPATH "nvcc")
endif()
