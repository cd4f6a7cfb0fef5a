// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "base/system/clock.hpp"
#include "base/system/message_link.hpp"

namespace aisp::pair {

// Kinds of messages between a rank and the hub (run/parent/rank_hub.hpp), where ranks meet.
enum RankMessage : char {
  rank_hello = 'h',    // what: the key of the pair's run; body: the rank
  rank_meets = 'm',    // what: at which place of the program; body: the rank's bytes
  rank_trouble = 't',  // body: why the rank cannot go on like the others
  rank_leaves = 'l',   // what: a word of RankLeaves; body: why
  ranks_met = 'M',     // what: HubTimes; body: the bytes of all ranks, in pieces
  ranks_apart = 'A',   // what: "skipped", or empty; body: why
};

// How a rank leaves, in `what` of its message.
inline constexpr const char* left_passed = "passed";
inline constexpr const char* left_skipped = "skipped";
inline constexpr const char* left_failed = "failed";
inline constexpr const char* left_lost = "lost";  // because of another rank

// When the hub heard a rank and when it answered, by the clock of its machine.
struct HubTimes {
  double heard_s = 0, answered_s = 0;
};

// The difference between the clock of the hub's machine and this one's. Each answer of the hub gives an estimate, which is wrong
// by at most half of the time that the message and the answer were under way; the best one counts until the clocks may have
// drifted apart by as much.
class HubClock {
 public:
  void see(double sent_s, const HubTimes& hub, double received_s);
  double offset_s() const { return offset_s_; }

 private:
  double offset_s_ = 0, error_s_ = 0, seen_s_ = 0;
  bool known_ = false;
};

// Another rank has ended, or is at another place of the program: this pair's run is over.
class RanksApart : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::string joined_pieces(const std::vector<std::string>& pieces);
std::vector<std::string> cut_pieces(const std::string& joined);

// The processes of one pair as one of them sees them. All ranks call the same functions in the same order, each of which returns
// when all have called it, and throws RanksApart if that cannot happen any more, or Unsupported where another rank was skipped.
// In a process by itself they return what they are given.
class RankGroup {
 public:
  struct Place {
    int rank = 0, ranks = 1;
    std::string hub, key;
    bool one_clock = true;  // all ranks are on the hub's machine
  };

  RankGroup() = default;
  explicit RankGroup(const Place& place);
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int rank() const { return place_.rank; }
  int ranks() const { return place_.ranks; }
  bool several() const { return place_.ranks > 1; }

  // Returns the bytes of all ranks. `where`: the place of the program, for messages.
  std::vector<std::string> gather(const std::string& where, const std::string& own);
  template <class T>
  std::vector<T> values(const std::string& where, const T& own) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (!several()) return {own};
    std::vector<T> all;
    for (const std::string& bytes : gather(where, {reinterpret_cast<const char*>(&own), sizeof own})) {
      if (bytes.size() != sizeof(T)) throw RanksApart{"another rank gave something else at " + where};
      std::memcpy(&all.emplace_back(), bytes.data(), sizeof(T));
    }
    return all;
  }
  // Returns rank 0's value: what it decides holds for all.
  template <class T>
  T of_first(const std::string& where, const T& own) {
    return values(where, own).front();
  }
  double now_s();  // by rank 0's clock
  bool any(const std::string& where, bool own);
  // Whether it holds on all ranks. `why`: why not on this one.
  bool all(const std::string& where, bool own, const std::string& why);
  // Returns on all ranks at the same time: to a few microseconds on one machine, and to the error of HubClock on several.
  void start_together(const std::string& where);

  // Tells the others that this rank ends, and how: one of the words above.
  void leave(const std::string& how, const std::string& why);

 private:
  double hub_now_s() const { return base::monotonic_s() + clock_.offset_s(); }

  Place place_;
  base::MessageLink link_;
  HubClock clock_;
};

}  // namespace aisp::pair
