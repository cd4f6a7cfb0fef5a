// SPDX-License-Identifier: Apache-2.0
// A client hands a request of 64 bytes to a server thread and waits for the reply, a thousand times. With a condition variable
// both sleep in turn: each hand-off enters the kernel, and a core that went idle must be woken, the slower the deeper it sleeps
// and the lower its clock. A thread that polls sees the request as soon as its cache line arrives. Both threads are pinned to
// CPUs of their own in all variants, so these differ in how they wait only.
#include <aisp/pair.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "spin.hpp"
#include "usage.hpp"

namespace aisp::ch03 {
namespace {

constexpr std::size_t message_words = 15;
using Words = std::array<std::uint32_t, message_words>;

struct Message {
  std::uint32_t sequence;
  Words words;
};
static_assert(sizeof(Message) == 64);

// Each mailbox holds one message: send() is called again only when the other side has answered.
class SleepingMailbox {
 public:
  void send(const Message& message) {
    {
      const std::scoped_lock lock{mutex_};
      message_ = message;
    }
    arrived_.notify_one();
  }
  Message receive(std::uint32_t sequence) {
    std::unique_lock lock{mutex_};
    arrived_.wait(lock, [&] { return message_.sequence == sequence; });
    return message_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  Message message_{};
};

// The sequence number is the flag, in the line of the message: one cache line travels per hand-off.
class alignas(64) PollingMailbox {
 public:
  void send(const Message& message) {
    words_ = message.words;
    sequence_.store(message.sequence, std::memory_order_release);
  }
  Message receive(std::uint32_t sequence) {
    while (sequence_.load(std::memory_order_acquire) != sequence) pause_cpu();
    return {sequence, words_};
  }

 private:
  std::atomic<std::uint32_t> sequence_{0};
  Words words_{};
};

class alignas(64) PatientMailbox {
 public:
  // Sequentially consistent, as the receiver may be about to sleep: either it sees this number or notify_one() sees it waiting.
  void send(const Message& message) {
    words_ = message.words;
    sequence_.store(message.sequence);
    sequence_.notify_one();
  }
  Message receive(std::uint32_t sequence) {
    if (!poll(sequence))
      for (std::uint32_t now; (now = sequence_.load()) != sequence;) sequence_.wait(now);
    return {sequence, words_};
  }

 private:
  // Reading the clock takes about as long as a hand-off, so it is left to waits that have become long.
  bool poll(std::uint32_t sequence) const {
    using Clock = std::chrono::steady_clock;
    constexpr auto patience = std::chrono::microseconds{50};
    constexpr int polls_per_look = 64;
    for (Clock::time_point start{};;) {
      for (int i = 0; i < polls_per_look; ++i) {
        if (sequence_.load(std::memory_order_acquire) == sequence) return true;
        pause_cpu();
      }
      const auto now = Clock::now();
      if (start == Clock::time_point{}) start = now;
      if (now - start > patience) return false;
    }
  }

  std::atomic<std::uint32_t> sequence_{0};
  Words words_{};
};

std::uint32_t answer(std::uint32_t word, std::uint32_t sequence) { return (word ^ sequence) * 0x9E3779B1u; }

class IdleWakeup final : public Workload {
 public:
  explicit IdleWakeup(Setup& setup)
      : hand_offs_{setup.scaled(1000)},
        requests_{setup.input<std::uint32_t>(hand_offs_ * message_words, integers(0, 0xFFFFFFFF))},
        sequences_{setup.output<std::uint32_t>(hand_offs_)},
        checksums_{setup.output<std::uint32_t>(hand_offs_)},
        team_{setup.threads(2)} {}

  // One cache line there and one back, each at least 25 ns between neighbouring cores; between sockets it is several times that.
  Cost cost() const override { return {.seconds = 2 * 25e-9 * static_cast<double>(hand_offs_)}; }
  double expected_output(int output, std::size_t index) const override {
    const auto sequence = static_cast<std::uint32_t>(index + 1);
    if (output == 0) return sequence;
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < message_words; ++i) sum += answer(requests_.host(index * message_words + i), sequence);
    return sum;
  }

  void condition_variable(Launch&) { hand_off<SleepingMailbox>(); }
  void spin_then_sleep(Launch&) { hand_off<PatientMailbox>(); }
  void spin(Launch&) { hand_off<PollingMailbox>(); }

  void metrics(std::string_view, Metrics& metrics) override {
    metrics.report("context_switches", used_.context_switches, "count", Metrics::Better::lower);
  }

 private:
  template <class Mailbox>
  void hand_off() {
    const Usage before = Usage::now();
    Mailbox to_server, to_client;
    team_.run([&](int worker) { worker == 0 ? ask(to_server, to_client) : serve(to_server, to_client); });
    used_ = Usage::now().since(before);
  }
  template <class Mailbox>
  void ask(Mailbox& to_server, Mailbox& to_client) const {
    Message request;
    for (std::uint32_t sequence = 1; sequence <= hand_offs_; ++sequence) {
      request.sequence = sequence;
      std::copy_n(requests_ + (sequence - 1) * message_words, message_words, request.words.begin());
      to_server.send(request);
      const Message reply = to_client.receive(sequence);
      std::uint32_t sum = 0;
      for (const std::uint32_t word : reply.words) sum += word;
      sequences_[sequence - 1] = reply.sequence;
      checksums_[sequence - 1] = sum;
    }
  }
  template <class Mailbox>
  void serve(Mailbox& to_server, Mailbox& to_client) const {
    for (std::uint32_t sequence = 1; sequence <= hand_offs_; ++sequence) {
      Message message = to_server.receive(sequence);
      for (std::uint32_t& word : message.words) word = answer(word, sequence);
      to_client.send(message);
    }
  }

  std::size_t hand_offs_;
  Input<std::uint32_t> requests_;
  Output<std::uint32_t> sequences_, checksums_;
  ThreadTeam& team_;
  Usage used_;
};

}  // namespace

extern constinit const Pair idle_wakeup{
    .teaches =
        "waking a sleeping core costs microseconds, tens in a virtual machine; deep idle states and a slow governor add to it",
    .lesson = "spin_then_sleep",
    .make = make<IdleWakeup>,
    .baseline = {.name = "condition_variable", .run = call<&IdleWakeup::condition_variable>},
    .optimized = variants({{.name = "spin_then_sleep", .run = call<&IdleWakeup::spin_then_sleep>},
                           {.name = "spin", .run = call<&IdleWakeup::spin>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
};

}  // namespace aisp::ch03
