# SPDX-License-Identifier: Apache-2.0
# src/report/html/page/* in the executable: what the HTML report and its pictures are made of.
#   aisp_embed_page(OUT_VARIABLE)   the C++ file that holds them
function(aisp_embed_page out)
  set(folder "${PROJECT_SOURCE_DIR}/src/report/html/page")
  set(code "${PROJECT_BINARY_DIR}/generated/page/page.cpp")
  set(script "${PROJECT_SOURCE_DIR}/cmake/embed.cmake")
  set(files "page_frame=${folder}/report.html page_style=${folder}/report.css page_script=${folder}/report.js picture_style=${folder}/picture.css")
  add_custom_command(OUTPUT "${code}"
    COMMAND "${CMAKE_COMMAND}" "-DAISP_FILES=${files}" "-DAISP_NAMESPACE=aisp::report" "-DAISP_OUT=${code}" -P "${script}"
    DEPENDS "${folder}/report.html" "${folder}/report.css" "${folder}/report.js" "${folder}/picture.css" "${script}"
    COMMENT "Embedding the report's page"
    VERBATIM)
  set(${out} "${code}" PARENT_SCOPE)
endfunction()
