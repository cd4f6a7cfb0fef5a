// SPDX-License-Identifier: Apache-2.0
// The place where the ranks of one pair meet. Their processes connect to it (pair/ranks.hpp); it answers when all have come to
// one place of the program, and lets all go when that cannot happen any more. Nothing that a rank sends or leaves out harms it.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/system/message_link.hpp"
#include "evidence/words.hpp"
#include "pair/ranks.hpp"

namespace aisp::run {

class RankHub {
 public:
  // Listens at an address of its own on this machine, or at `address`, where `listener` listens for all hubs of a run.
  explicit RankHub(int ranks, std::string address = {}, int listener = -1);
  ~RankHub();
  RankHub(const RankHub&) = delete;
  RankHub& operator=(const RankHub&) = delete;

  const std::string& address() const { return address_; }
  const std::string& key() const { return key_; }

  // All may be called from any thread.
  bool waits(int rank) const;  // whether the rank has come to a place where others have not
  // How long a rank has been going on since another ended, or could not go on like the others; 0 while none has, or if this one
  // waits here or has been told.
  double alone_for_s(int rank) const;
  std::optional<int> culprit() const;  // the rank because of which the others ended early
  // Tells that a rank's process has ended.
  void ended(int rank, evidence::Status status, const std::string& reason);

 private:
  struct Seat {
    base::MessageLink link;
    std::optional<base::Message> met;  // has come to a place and waits
    double met_s = 0;                  // when
    std::string trouble;               // why it cannot go on
    bool told = false;                 // that the run is over
    bool left = false;
    std::string how, why;  // it left
  };
  void serve();
  void accept_one();
  void greet();
  void hear(int rank, const base::Message& message);
  void leave(int rank, const std::string& how, const std::string& why);
  void release();
  void answer_all();
  void part(const std::string& text, const std::string& how);
  std::string place_of_each() const;
  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }

  mutable std::mutex mutex_;
  std::vector<Seat> seats_;
  std::vector<base::MessageLink> strangers_;  // connected, and not known yet
  std::string key_, address_;
  base::Descriptor listener_, wake_read_, wake_write_;
  std::optional<int> culprit_;
  std::string apart_, apart_how_;  // why the ranks cannot meet any more; empty: they can
  double first_left_s_ = 0, first_trouble_s_ = 0;
  std::atomic<bool> stop_{false};
  std::thread server_;
};

}  // namespace aisp::run
