// SPDX-License-Identifier: Apache-2.0
#include "run/parent/rank_hub.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/entropy.hpp"
#include "base/text.hpp"

namespace aisp::run {
namespace {

constexpr std::size_t longest_reason = 600;
constexpr std::size_t most_strangers = 64;

std::string name_of_rank(int rank) { return fmt::format("rank {}", rank); }

}  // namespace

RankHub::RankHub(int ranks, std::string address, int listener)
    : seats_(static_cast<std::size_t>(ranks)),
      key_{fmt::format("{:016x}{:016x}", base::entropy(), base::entropy())},
      address_{std::move(address)} {
  if (listener >= 0) {
    listener_ = base::Descriptor{::fcntl(listener, F_DUPFD_CLOEXEC, 0)};
  } else {
    address_ = fmt::format("aisp-{}-{:016x}", ::getpid(), base::entropy());
    listener_ = base::listen_at(address_);
  }
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) throw base::Error{base::Exit::unfit, "no pipe for a pair's ranks"};
  wake_read_.reset(ends[0]);
  wake_write_.reset(ends[1]);
  server_ = std::thread{[this] { serve(); }};
}

RankHub::~RankHub() {
  stop_ = true;
  wake_write_.reset();
  server_.join();
}

bool RankHub::waits(int rank) const {
  const std::lock_guard lock{mutex_};
  return seats_[static_cast<std::size_t>(rank)].met.has_value();
}

double RankHub::alone_for_s(int rank) const {
  const std::lock_guard lock{mutex_};
  const Seat& own = seats_[static_cast<std::size_t>(rank)];
  if (own.met || own.told) return 0;
  const double since_s = first_trouble_s_ > 0 ? first_trouble_s_ : first_left_s_;
  return since_s > 0 ? base::monotonic_s() - since_s : 0;
}

std::optional<int> RankHub::culprit() const {
  const std::lock_guard lock{mutex_};
  return culprit_;
}

void RankHub::ended(int rank, evidence::Status status, const std::string& reason) {
  const std::lock_guard lock{mutex_};
  const char* how = status == evidence::Status::passed    ? pair::left_passed
                    : status == evidence::Status::skipped ? pair::left_skipped
                                                          : pair::left_failed;
  leave(rank, how, reason);
  release();
}

void RankHub::serve() {
  while (!stop_) {
    std::vector<pollfd> watched{{wake_read_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock{mutex_};
      const auto watch = [&](const base::MessageLink& link) {
        if (link.open())
          watched.push_back({link.descriptor(), static_cast<short>(POLLIN | (link.has_unsent() ? POLLOUT : 0)), 0});
      };
      for (const Seat& each : seats_) watch(each.link);
      for (const base::MessageLink& each : strangers_) watch(each);
    }
    ::poll(watched.data(), watched.size(), 1000);
    const std::lock_guard lock{mutex_};
    if (watched[1].revents != 0) accept_one();
    greet();
    for (int rank = 0; rank < static_cast<int>(seats_.size()); ++rank)
      for (const base::Message& message : seat(rank).link.move()) hear(rank, message);
    release();
  }
}

void RankHub::accept_one() {
  base::Descriptor connection{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  if (connection.get() < 0) return;
  if (strangers_.size() >= most_strangers) strangers_.erase(strangers_.begin());
  strangers_.emplace_back(std::move(connection));
}

// Gives those who know the key their seats. Others find no answer.
void RankHub::greet() {
  for (base::MessageLink& stranger : strangers_) {
    const std::vector<base::Message> messages = stranger.move();
    if (messages.empty()) continue;
    int rank = -1;
    const std::string& text = messages.front().body;
    std::from_chars(text.data(), text.data() + text.size(), rank);
    const bool known = messages.front().kind == pair::rank_hello && messages.front().what == key_ && rank >= 0 &&
                       rank < static_cast<int>(seats_.size()) && !seat(rank).link.open() && !seat(rank).left;
    if (!known) {
      stranger.close();
      continue;
    }
    seat(rank).link = std::move(stranger);
    for (std::size_t i = 1; i < messages.size(); ++i) hear(rank, messages[i]);
  }
  std::erase_if(strangers_, [](const base::MessageLink& link) { return !link.open(); });
}

void RankHub::hear(int rank, const base::Message& message) {
  Seat& from = seat(rank);
  if (message.kind == pair::rank_meets) {
    from.met = message;
    from.met_s = base::monotonic_s();
  }
  if (message.kind == pair::rank_trouble) {
    from.trouble = base::one_line(message.body, longest_reason);
    if (first_trouble_s_ == 0) first_trouble_s_ = base::monotonic_s();
    if (!culprit_) culprit_ = rank;
  }
  if (message.kind == pair::rank_leaves) leave(rank, message.what, base::one_line(message.body, longest_reason));
}

void RankHub::leave(int rank, const std::string& how, const std::string& why) {
  Seat& gone = seat(rank);
  gone.met.reset();
  if (gone.left) return;
  gone.left = true;
  gone.how = how;
  gone.why = why;
  if (first_left_s_ == 0) first_left_s_ = base::monotonic_s();
  if (!culprit_ && how != pair::left_passed && how != pair::left_lost) culprit_ = rank;
}

// Answers when all have come to one place, and parts them when they cannot.
void RankHub::release() {
  const auto waiting = std::ranges::count_if(seats_, [](const Seat& each) { return each.met.has_value(); });
  if (waiting == 0) return;
  if (!apart_.empty()) return part(apart_, apart_how_);
  const std::string& place = std::ranges::find_if(seats_, [](const Seat& each) { return each.met.has_value(); })->met->what;
  const bool elsewhere = std::ranges::any_of(seats_, [&](const Seat& each) { return each.met && each.met->what != place; });
  const auto troubled = std::ranges::find_if(seats_, [](const Seat& each) { return !each.trouble.empty(); });
  const auto gone = culprit_ && seat(*culprit_).left ? seats_.begin() + *culprit_ : std::ranges::find_if(seats_, &Seat::left);
  const auto number = [&](auto found) { return static_cast<int>(found - seats_.begin()); };
  if ((elsewhere || gone != seats_.end()) && troubled != seats_.end())
    part(fmt::format("{}: {}", name_of_rank(number(troubled)), troubled->trouble), {});
  else if (elsewhere) part("the ranks went apart: " + place_of_each(), {});
  else if (gone != seats_.end())
    part(gone->how == pair::left_passed
             ? fmt::format("{} ended before the others, who were at {}", name_of_rank(number(gone)), place)
             : fmt::format("{}: {}", name_of_rank(number(gone)), gone->why),
         gone->how);
  else if (waiting == static_cast<std::ptrdiff_t>(seats_.size())) answer_all();
}

void RankHub::answer_all() {
  std::vector<std::string> pieces;
  for (Seat& each : seats_) pieces.push_back(std::move(each.met->body));
  const std::string joined = pair::joined_pieces(pieces);
  for (Seat& each : seats_) {
    each.met.reset();
    each.trouble.clear();
  }
  first_trouble_s_ = 0;
  for (Seat& each : seats_) {
    const pair::HubTimes times{each.met_s, base::monotonic_s()};
    each.link.send({pair::ranks_met, {reinterpret_cast<const char*>(&times), sizeof times}, joined});
  }
}

void RankHub::part(const std::string& text, const std::string& how) {
  apart_ = text;
  apart_how_ = how;
  for (Seat& each : seats_)
    if (each.met) {
      each.met.reset();
      each.told = true;
      each.link.send({pair::ranks_apart, how, text});
    }
}

std::string RankHub::place_of_each() const {
  std::map<std::string, std::string> ranks_at;
  for (std::size_t rank = 0; rank < seats_.size(); ++rank)
    if (seats_[rank].met) {
      std::string& list = ranks_at[base::one_line(seats_[rank].met->what, 60)];
      list += (list.empty() ? "" : ", ") + std::to_string(rank);
    }
  std::string text;
  for (const auto& [place, ranks] : ranks_at) text += fmt::format("{}{} at {}", text.empty() ? "" : "; ", ranks, place);
  return text;
}

}  // namespace aisp::run
