# SPDX-License-Identifier: Apache-2.0
# libaisp: aisp's measuring for programs in other languages, which declare a pair at run time (src/foreign/calls.hpp). Nothing but its C
# interface can be seen from outside, so that it lives beside other copies of what is in it.
file(GLOB foreign_sources CONFIGURE_DEPENDS "src/foreign/*.cpp")
add_library(aisp_foreign MODULE ${foreign_sources})
set_target_properties(aisp_foreign PROPERTIES OUTPUT_NAME aisp PREFIX lib LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY Static
                      LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/foreign.map")
target_link_libraries(aisp_foreign PRIVATE aisp_core "$<BUILD_INTERFACE:aisp_warnings>")
target_link_options(aisp_foreign PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/foreign.map" -Wl,--no-undefined)
