# SPDX-License-Identifier: Apache-2.0
# Writes aisp_version.hpp at build time; run as cmake -D... -P version.cmake. The file changes only when its content does, and one
# source file includes it, so a new commit recompiles that file and nothing else.
set(AISP_GIT_COMMIT "")
set(AISP_GIT_BRANCH "")
set(AISP_GIT_DIRTY false)
set(AISP_VERSION "${AISP_PROJECT_VERSION}")

function(git out)
  execute_process(COMMAND git -C "${AISP_SOURCE_DIR}" ${ARGN} OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE status
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(status EQUAL 0)
    set(${out} "${text}" PARENT_SCOPE)
  endif()
endfunction()

# A source archive inside some other repository must not take that repository's commit for its own.
if(EXISTS "${AISP_SOURCE_DIR}/.git")
  git(AISP_GIT_COMMIT rev-parse --verify HEAD)
  git(AISP_GIT_BRANCH rev-parse --abbrev-ref HEAD)
  set(described "")
  git(described describe --tags --match "v[0-9]*" --long)
  if(described MATCHES "^v(.*)-([0-9]+)-(g[0-9a-f]+)$")
    set(AISP_VERSION "${CMAKE_MATCH_1}")
    if(NOT CMAKE_MATCH_2 EQUAL 0)
      string(APPEND AISP_VERSION "+${CMAKE_MATCH_2}.${CMAKE_MATCH_3}")
    endif()
  elseif(AISP_GIT_COMMIT)
    string(SUBSTRING "${AISP_GIT_COMMIT}" 0 9 short)
    string(APPEND AISP_VERSION "+g${short}")
  endif()
  set(changes "")
  git(changes status --porcelain --untracked-files=no)
  # A pair that was dropped in and not yet added is built all the same.
  set(additions "")
  git(additions status --porcelain --untracked-files=normal -- chapters src include selftest cmake)
  if(changes OR additions)
    set(AISP_GIT_DIRTY true)
  endif()
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/aisp_version.hpp.in" "${AISP_OUT}" @ONLY)
