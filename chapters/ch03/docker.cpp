// SPDX-License-Identifier: Apache-2.0
// A loader process makes batches, a trainer process reads them. Through a pipe every byte is copied into the kernel and out of it
// again, at most 64 KiB at a time, with a system call and often a wake-up for each piece. In memory that both processes map, the
// loader fills a batch where the trainer reads it, and a sequence number says that it is there. The ring is a memfd, which needs
// no room in /dev/shm. Loaders that keep batches there fail in a container whose /dev/shm ends at Docker's 64 MB, so the limits
// that this process sees are reported beside the times.
#include <sys/statvfs.h>
#include <aisp/pair.hpp>

#include <algorithm>

#include "limits.hpp"
#include "loader_process.hpp"

namespace aisp::ch03 {
namespace {

using namespace loading;

std::uint32_t sum_of(const std::uint32_t* words) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < batch_words; ++i) sum += words[i];
  return sum;
}

double shared_memory_mib() {
  struct statvfs use {};
  if (::statvfs("/dev/shm", &use) != 0) return 0;
  return static_cast<double>(use.f_blocks) * static_cast<double>(use.f_frsize) / (1 << 20);
}

class Docker final : public Workload {
 public:
  explicit Docker(Setup& setup)
      : batches_{setup.scaled(most_batches)},
        seeds_{setup.input<std::uint32_t>(batches_, integers(0, 0xFFFFFFFF))},
        sums_{setup.output<std::uint32_t>(batches_)},
        batch_{setup.scratch<std::uint32_t>(batch_words, {.alignment = 4096})},
        loader_{batch_} {}

  Cost cost() const override { return {.host_bytes = 2.0 * static_cast<double>(batches_ * batch_bytes)}; }
  double expected(std::size_t index) const override {
    std::uint32_t state = seeds_.host(index), sum = 0;
    for (std::size_t i = 0; i < batch_words; ++i) sum += word_of(state += word_step);
    return sum;
  }
  void metrics(std::string_view, Metrics& metrics) override {
    report_limit(metrics, "dev_shm", shm_mib_, "MiB");
    report_limit(metrics, "memlock_limit", memlock_mib_, "MiB");
    report_limit(metrics, "cpu_max", quota_, "CPUs");
    report_limit(metrics, "cpuset", cpus_, "CPUs");
  }

  void pipe(Launch&) {
    loader_.send(order(Way::pipe));
    for (std::size_t i = 0; i < batches_; ++i) {
      loader_.receive(batch_);
      sums_[i] = sum_of(batch_);
    }
  }
  void shared_ring(Launch&) {
    loader_.send(order(Way::ring));
    for (std::size_t i = 0; i < batches_; ++i) loader_.take([&](const std::uint32_t* batch) { sums_[i] = sum_of(batch); });
  }

 private:
  Order order(Way way) const {
    Order order{.way = way, .batches = static_cast<std::uint32_t>(batches_), .seeds = {}};
    std::copy_n(seeds_.get(), batches_, order.seeds.begin());
    return order;
  }

  std::size_t batches_;
  Input<std::uint32_t> seeds_;
  Output<std::uint32_t> sums_;
  Scratch<std::uint32_t> batch_;  // each process has its own from the fork on
  LoaderProcess loader_;
  double shm_mib_ = shared_memory_mib(), memlock_mib_ = memlock_limit_mib(), quota_ = cpu_quota();
  double cpus_ = static_cast<double>(usable_cpus().size());
};

}  // namespace

extern constinit const Pair docker{
    .teaches =
        "a pipe copies every batch twice; memory that loader and trainer map does not, and as a memfd it needs no room in "
        "/dev/shm",
    .lesson = "shared_ring",
    .make = make<Docker>,
    .baseline = {.name = "pipe", .run = call<&Docker::pipe>},
    .optimized = variants({{.name = "shared_ring", .run = call<&Docker::shared_ring>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .needs = {.cpus = 2},
};

}  // namespace aisp::ch03
