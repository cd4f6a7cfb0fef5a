// SPDX-License-Identifier: Apache-2.0
// What a terminal may be shown of texts that others wrote.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace aisp::base {

// Control characters become spaces, U+0080 to U+009F too, so that no text can move the cursor, set a title or begin a line.
std::string without_controls(std::string_view text);

// The same of a line of our own, which keeps the colours of a Painter.
std::string on_screen(std::string_view line);

// The length of what a Painter wrote at the beginning of `text`; 0 where that is no colour.
std::size_t painted(std::string_view text);

// A terminal on which a line can be drawn anew: TERM is not "dumb" and not unset.
bool can_redraw(int descriptor);

}  // namespace aisp::base
