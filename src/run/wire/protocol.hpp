// SPDX-License-Identifier: Apache-2.0
// The parent's end of the result pipe: bytes to lines, lines to messages. Malformed output of a child is never fatal here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "evidence/result.hpp"

namespace aisp::run {

struct StageBegun {
  evidence::Stage stage = evidence::Stage::none;
  double limit_s = 0;
};
struct StageDone {
  evidence::Stage stage = evidence::Stage::none;
  double elapsed_s = 0;
};
struct RoundProgress {
  int round = 0;
  int of = 0;
  double interval_percent = 0;  // width of the widest interval at the last inspection; 0: none yet
  double wanted_percent = 0;    // sampling ends when every interval is this narrow; 0: it does not depend on them
  double spent_s = 0, budget_s = 0;
};
struct Report {  // "result" and "partial"
  evidence::PairResult result;
  bool is_final = false;
};
struct BaselineWanted {  // answered by the parent with times from another process
  int runs = 0;
  double limit_s = 0;
  std::uint64_t seed = 0;  // of the inputs
};
// The note of a result whose timed samples of the baseline took longer than it takes alone, but not when both were executed in
// turns: the machine was busy.
inline constexpr const char* longer_in_rounds_only =
    "times of the baseline against those in a process of its own: they differ, but not in turns";
// The turn of a pair among others that run at the same time: to work, or to be measured while none of them works.
enum class Turn { work, quiet };
struct TurnWanted {  // answered with a line when it has come
  Turn turn{};
};
struct BaselineTimes {
  std::vector<double> ms;
};
struct Crash {                      // the last message of a process that dies
  std::vector<std::string> places;  // base::frame_text reads them; innermost first
};
struct Unreadable {
  std::string excerpt;  // printable, short
};

using Message =
    std::variant<StageBegun, StageDone, RoundProgress, Report, TurnWanted, BaselineWanted, BaselineTimes, Crash, Unreadable>;

std::string_view to_string(Turn turn);

// Parses a line without ever throwing; empty lines give nothing.
std::optional<Message> parse_message(std::string_view line);

// Returns `text` with everything unprintable shown as '?', at most `limit` characters.
std::string printable_excerpt(std::string_view text, std::size_t limit = 80);

// Cuts a byte stream into lines. A line longer than the cap is dropped to its end and counted, so that a runaway child cannot
// fill the parent's memory.
class LineSplitter {
 public:
  explicit LineSplitter(std::size_t cap_bytes = std::size_t{64} << 20) : cap_bytes_{cap_bytes} {}
  void feed(std::string_view bytes, const std::function<void(std::string_view line)>& on_line);
  std::size_t overlong_lines() const { return overlong_lines_; }

 private:
  std::size_t cap_bytes_;
  std::string pending_;
  bool discarding_ = false;
  std::size_t overlong_lines_ = 0;
};

}  // namespace aisp::run
