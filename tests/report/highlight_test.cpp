// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <regex>

#include "report/html/text.hpp"

namespace aisp::report::html {
namespace {

TEST(Highlight, ColorsTokens) {
  EXPECT_EQ(highlighted("int x; // <b>"), "<i class=\"k\">int</i> x; <i class=\"c\">// &lt;b&gt;</i>");
  EXPECT_EQ(highlighted("#pragma once \\\n x\nf(__syncthreads, dim3, 1.5f) #"),
            "<i class=\"d\">#pragma once \\\n x</i>\nf(<i class=\"u\">__syncthreads</i>, <i class=\"u\">dim3</i>, "
            "<i class=\"n\">1.5f</i>) #");
  EXPECT_EQ(highlighted("a = R\"x(\")x\" + \"\\\"\""),
            "a = <i class=\"s\">R&quot;x(&quot;)x&quot;</i> + <i class=\"s\">&quot;\\&quot;&quot;</i>");
}

TEST(Highlight, KeepsTheTextWhateverItIs) {
  static const std::regex tags{"</?i[^>]*>"};
  for (const std::string source : {"", " ", "\"open", "R\"(open", "/* open", "/", "#define a \\", "#define a \\\n", "'", "'\\",
                                   "template <", "R\"", "\\", "// c\n  # d\ne"})
    EXPECT_EQ(std::regex_replace(highlighted(source), tags, ""), escaped(source)) << source;
}

}  // namespace
}  // namespace aisp::report::html
