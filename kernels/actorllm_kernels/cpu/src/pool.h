// Threads that share the tasks of a list of phases.
//
// Everyone walks through the phases and takes the next task of the phase as long as there is one; a phase
// begins when all tasks of the one before it are done. A thread that comes late, or that the system has put
// aside between two tasks, holds up nobody.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "simd.h"

#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

INLINE void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

class Pool {
  public:
    using Task = std::function<void(int thread, int phase, int64_t task)>;

    Pool(int num_threads, int max_phases, Task task)
        : max_phases_(max_phases), phases_(new Phase[max_phases]), task_(std::move(task)) {
        for (int i = 1; i < num_threads; i++) helpers_.emplace_back([this, i] { help(i); });
    }

    ~Pool() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            closing_ = true;
        }
        wake_.notify_all();
        for (auto& helper : helpers_) helper.join();
    }

    // Runs counts[p] tasks of each phase p, one phase after the other.
    void run(const std::vector<int64_t>& counts, bool with_help) {
        const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
        const int num_phases = (int)counts.size();
        for (int p = 0; p < num_phases; p++) {
            phases_[p].next.store((uint64_t)round << 32, std::memory_order_relaxed);
            phases_[p].done.store(0, std::memory_order_relaxed);
            phases_[p].count.store(counts[p], std::memory_order_relaxed);
        }
        num_phases_.store(num_phases, std::memory_order_relaxed);
        if (with_help && !helpers_.empty()) {
            {
                std::lock_guard<std::mutex> lock(mutex_);
                round_.store(round, std::memory_order_release);
            }
            wake_.notify_all();
        } else {
            alone_.store(round, std::memory_order_relaxed);
            round_.store(round, std::memory_order_release);
        }
        work(0, round);
    }

  private:
    struct alignas(64) Phase {
        std::atomic<uint64_t> next{0};  // the round, and the task that is taken next
        std::atomic<int64_t> done{0}, count{0};
    };

    static constexpr int PATIENCE = 500;    // pauses of a helper before it sleeps
    static constexpr int POLITENESS = 4000; // pauses before a waiting thread lets others run

    void work(int thread, uint32_t round) {
        const int num_phases = num_phases_.load(std::memory_order_relaxed);
        for (int p = 0; p < num_phases; p++) {
            Phase& phase = phases_[p];
            while (take(thread, phase, round, p)) {
            }
            for (int pauses = 0; phase.done.load(std::memory_order_acquire) < phase.count.load(std::memory_order_relaxed);
                 pauses++) {
                if (round_.load(std::memory_order_acquire) != round) return;
                if (pauses < POLITENESS) {
                    pause_briefly();
                } else {
                    std::this_thread::yield();
                }
            }
            if (round_.load(std::memory_order_acquire) != round) return;
        }
    }

    // Does one task; false when there is none, or the round is over. What a thread reads of a later round
    // cannot mislead it: its claim fails, since every round has another number in `next`.
    bool take(int thread, Phase& phase, uint32_t round, int number) {
        uint64_t next = phase.next.load(std::memory_order_acquire);
        for (;;) {
            if ((uint32_t)(next >> 32) != round) return false;
            const int64_t task = (int64_t)(next & 0xffffffff);
            if (task >= phase.count.load(std::memory_order_relaxed)) return false;
            if (phase.next.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) {
                task_(thread, number, task);
                phase.done.fetch_add(1, std::memory_order_release);
                return true;
            }
        }
    }

    void help(int thread) {
#if defined(__linux__)
        // Beside an event loop on the same cores the helper is the one that waits.
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
#endif
        uint32_t seen = 0;
        for (;;) {
            for (int i = 0; i < PATIENCE && is_new(seen) == false; i++) pause_briefly();
            if (!is_new(seen)) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return closing_ || is_new(seen); });
                if (closing_) return;
            }
            seen = round_.load(std::memory_order_acquire);
            work(thread, seen);
        }
    }

    bool is_new(uint32_t seen) const {
        const uint32_t round = round_.load(std::memory_order_acquire);
        return round != seen && round != alone_.load(std::memory_order_relaxed);
    }

    const int max_phases_;
    std::unique_ptr<Phase[]> phases_;
    const Task task_;
    std::vector<std::thread> helpers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint32_t> round_{0}, alone_{0};
    std::atomic<int> num_phases_{0};
    bool closing_ = false;
};
