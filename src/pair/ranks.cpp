// SPDX-License-Identifier: Apache-2.0
#include "pair/ranks.hpp"

#include <aisp/check.hpp>
#include <aisp/host.hpp>

#include <algorithm>
#include <cstdint>

#include "base/error.hpp"

namespace aisp::pair {
namespace {

constexpr double answer_patience_s = 24 * 3600;  // the parent watches the time
// The time in which the last of the ranks wakes up, and then runs ahead of the start.
constexpr double wake_up_s = 150e-6, wake_up_of_each_s = 20e-6, on_the_way_s = 200e-6;
constexpr double drift = 20e-6;    // of two clocks that are not kept together, in seconds a second
constexpr int first_answers = 10;  // before the hub's clock is relied on

}  // namespace

std::string joined_pieces(const std::vector<std::string>& pieces) {
  std::string joined;
  for (const std::string& piece : pieces) {
    const auto bytes = static_cast<std::uint32_t>(piece.size());
    joined.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(piece);
  }
  return joined;
}

std::vector<std::string> cut_pieces(const std::string& joined) {
  std::vector<std::string> pieces;
  std::uint32_t bytes = 0;
  for (std::size_t at = 0; at + sizeof bytes <= joined.size(); at += bytes) {
    std::memcpy(&bytes, joined.data() + at, sizeof bytes);
    at += sizeof bytes;
    pieces.push_back(joined.substr(std::min(at, joined.size()), bytes));
  }
  return pieces;
}

void HubClock::see(double sent_s, const HubTimes& hub, double received_s) {
  const double error_s = ((received_s - sent_s) - (hub.answered_s - hub.heard_s)) / 2;
  if (known_ && error_s > error_s_ + drift * (received_s - seen_s_)) return;
  offset_s_ = ((hub.heard_s - sent_s) + (hub.answered_s - received_s)) / 2;
  error_s_ = error_s;
  seen_s_ = received_s;
  known_ = true;
}

RankGroup::RankGroup(const Place& place) : place_{place} {
  if (!several()) return;
  try {
    link_ = base::MessageLink{base::connect_to(place.hub)};
  } catch (const base::Error& error) {
    throw RanksApart{std::string{"it found no way to the other ranks: "} + error.what()};
  }
  link_.send({rank_hello, place.key, std::to_string(place.rank)});
  if (place.one_clock) return;
  for (int i = 0; i < first_answers; ++i) gather("a look at the clocks", {});
}

std::vector<std::string> RankGroup::gather(const std::string& where, const std::string& own) {
  if (!several()) return {own};
  const double sent_s = base::monotonic_s();
  link_.send({rank_meets, where, own});
  const std::optional<base::Message> answer = link_.wait(answer_patience_s);
  if (!answer) throw RanksApart{"its connection to the other ranks ended at " + where};
  if (answer->kind == ranks_apart && answer->what == left_skipped) throw Unsupported{answer->body};
  if (answer->kind != ranks_met) throw RanksApart{answer->body};
  if (HubTimes hub; !place_.one_clock && answer->what.size() == sizeof hub) {
    std::memcpy(&hub, answer->what.data(), sizeof hub);
    clock_.see(sent_s, hub, base::monotonic_s());
  }
  std::vector<std::string> all = cut_pieces(answer->body);
  if (all.size() != static_cast<std::size_t>(ranks())) throw RanksApart{"not all ranks answered at " + where};
  return all;
}

double RankGroup::now_s() { return of_first("a look at the clock", base::monotonic_s()); }

bool RankGroup::any(const std::string& where, bool own) {
  return std::ranges::any_of(gather(where, own ? "1" : "0"), [](const std::string& each) { return each == "1"; });
}

bool RankGroup::all(const std::string& where, bool own, const std::string& why) {
  if (several() && !own && !why.empty()) link_.send({rank_trouble, {}, why});
  return !any(where, !own);
}

void RankGroup::start_together(const std::string& where) {
  if (!several()) return;
  const double last_s = std::ranges::max(values(where, hub_now_s()));
  const double start_s = last_s + wake_up_s + wake_up_of_each_s * ranks() + (place_.one_clock ? 0 : on_the_way_s);
  while (hub_now_s() < start_s) pause_cpu();
}

void RankGroup::leave(const std::string& how, const std::string& why) {
  if (several() && link_.open()) link_.send({rank_leaves, how, why});
}

}  // namespace aisp::pair
