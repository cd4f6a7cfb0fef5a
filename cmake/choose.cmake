# SPDX-License-Identifier: Apache-2.0
# cmake -DPAIRS=TARGETS -DFOLDER=chapters -P choose.cmake: writes "21 of 163" when all of the targets name pairs, else what is wrong, one line.
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/registry.cmake")
set(AISP_NUMBERED ON)
aisp_find_pairs(all "${FOLDER}")
aisp_choose_pairs(chosen trouble "${PAIRS}" "${all}")
list(LENGTH all all)
list(LENGTH chosen chosen)
set(answer "${chosen} of ${all}")
if(trouble)
  set(answer "${trouble}")
endif()
execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "${answer}")
