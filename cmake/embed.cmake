# SPDX-License-Identifier: Apache-2.0
# Files as strings of C++:
#   cmake -DAISP_FILES="NAME=FILE NAME=FILE" -DAISP_NAMESPACE=a::b -DAISP_OUT=FILE -P embed.cmake
# defines `extern const char* const NAME` in that namespace for each.
string(REPLACE " " ";" files "${AISP_FILES}")
set(code "// Written by cmake/embed.cmake.\nnamespace ${AISP_NAMESPACE} {\n")
foreach(entry IN LISTS files)
  string(REGEX MATCH "^([^=]+)=(.*)$" matched "${entry}")
  set(name "${CMAKE_MATCH_1}")
  file(READ "${CMAKE_MATCH_2}" text)
  string(FIND "${text}" ")embedded\"" end)
  if(NOT end EQUAL -1)
    message(FATAL_ERROR "${CMAKE_MATCH_2} holds the mark that ends its string")
  endif()
  string(APPEND code "extern const char* const ${name};\nconst char* const ${name} = R\"embedded(${text})embedded\";\n")
endforeach()
file(WRITE "${AISP_OUT}" "${code}}  // namespace ${AISP_NAMESPACE}\n")
