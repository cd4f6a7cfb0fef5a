// SPDX-License-Identifier: Apache-2.0
// The pictures of a chapter's README, from recorded expectations. A comment right behind a link to a picture says what it shows:
//   ![Each step](speedups.svg)<!-- picture: speedups h200 -->
//   [the machine](machine.svg)<!-- picture: drawn by hand: where parts lie is not recorded -->
//   ![The ring](ring.svg)<!-- picture: drawn by scripts/draw-diagrams: a rule, no measurement -->
//   ![The levels](levels.svg)<!-- picture: drawn by aisp peak --levels: on an H100 -->
// KIND HARDWARE, then the pairs that it shows, in their order; all of the chapter unless it names some. Kinds: speedups of each
// variant; library, the speed of each in percent of the library's; roofline; intensity, FLOPs a byte; sweep, the rate of each
// variant of one pair (or its time where it declares no work) over a size; sweep_speedups, the same of speedups. A comment may
// take several lines. In a picture that is drawn by hand, figures may have comments as in prose (scripts/lib/quoted_figures.py).
#pragma once
#include <string>
#include <vector>

#include "evidence/recorded/counted.hpp"
#include "evidence/recorded/sweep.hpp"
#include "report/known_pair.hpp"

namespace aisp::report {

// All that pictures are drawn from, of whatever hardware.
struct Records {
  const std::vector<evidence::Expectations>& expectations;
  const std::vector<evidence::Sweep>& sweeps;
  const std::vector<evidence::Counted>& counted;
};

// By the words of marks.
enum class PictureKind : std::uint8_t { speedups, library, roofline, intensity, sweep, sweep_speedups };
constexpr base::Words<6> words_of(PictureKind) {
  return {{"speedups", "library", "roofline", "intensity", "sweep", "sweep_speedups"}};
}

struct PictureMark {
  std::string file;                 // as the page links to it
  std::optional<PictureKind> kind;  // absent: not drawn from evidence
  std::string hardware;
  std::vector<std::string> pairs;
};

// Throws base::Error (usage) naming `place` for a link to an SVG of the page's folder without such a comment, or with one that
// cannot be read.
std::vector<PictureMark> picture_marks(const std::string& page, const std::string& place);

// The picture as SVG. `chapter_pairs` are those of `chapter`. Throws base::Error (usage) naming `place` where the mark asks for
// what was not recorded.
std::string chapter_picture(const PictureMark& mark, const std::string& chapter, const std::vector<KnownPair>& chapter_pairs,
                            const Records& records, const std::string& place);

}  // namespace aisp::report
