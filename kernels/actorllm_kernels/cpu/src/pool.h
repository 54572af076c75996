// Threads that share the tasks of a list of phases.
//
// Everyone walks through the phases. Of each it first takes the tasks of its own part, one after the other,
// then what is left of the others' parts; a phase begins when all tasks of the one before it are done. A
// thread that comes late, or that the system has put aside between two tasks, holds up nobody; and what a
// thread was put aside with, another may do in its place, if the task allows it.
#pragma once

#include <atomic>
#include <chrono>
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

INLINE int64_t nanoseconds() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

class Pool;

// A thread of the pool, and the task that it is in.
class alignas(64) Worker {
  public:
    int number = 0;

    // From here on, until `keep`, the task only reads what lives as long as the pool, and writes what is this
    // thread's own: another thread may do the task in its place.
    void offer() { ticket_.store(is_alone_ ? 0 : ++last_ticket_, std::memory_order_release); }

    // Whether the task is still this thread's. If not, its results must be thrown away.
    bool keep() {
        uint64_t ticket = last_ticket_;
        is_mine_ = is_alone_ || ticket_.compare_exchange_strong(ticket, 0, std::memory_order_acq_rel);
        return is_mine_;
    }

  private:
    friend class Pool;

    std::atomic<uint64_t> ticket_{0};  // of the offer; 0: there is none
    std::atomic<uint64_t> round_{0};
    std::atomic<int> phase_{0};
    std::atomic<int64_t> task_{0}, begun_{0};
    uint64_t last_ticket_ = 0;
    int64_t took_ = 0;     // nanoseconds of the last task
    int64_t yielded_ = 0;  // when others were let run
    bool is_mine_ = true, is_alone_ = false;
};

class Pool {
  public:
    using Task = std::function<void(Worker& worker, int phase, int64_t task)>;

    // Throws what the system has when it gives no more threads or memory.
    Pool(int num_threads, int max_phases, Task task)
        : num_threads_(num_threads),
          phases_(max_phases),
          parts_(new Part[(size_t)max_phases * num_threads]),
          workers_(new Worker[num_threads]),
          task_(std::move(task)) {
        for (int i = 0; i < num_threads; i++) workers_[i].number = i;
        try {
            for (int i = 1; i < num_threads; i++) helpers_.emplace_back([this, i] { help(workers_[i]); });
        } catch (...) {
            end();
            throw;
        }
    }

    ~Pool() { end(); }

    // Runs counts[p] tasks of each phase p, one phase after the other.
    void run(const std::vector<int64_t>& counts, bool with_help) {
        const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
        const int num_phases = (int)counts.size(), shares = with_help ? num_threads_ : 1;
        for (int p = 0; p < num_phases; p++) {
            for (int i = 0; i < shares; i++) {
                part(p, i).next.store(token(round, counts[p] * i / shares), std::memory_order_relaxed);
                part(p, i).end.store(counts[p] * (i + 1) / shares, std::memory_order_release);
            }
            phases_[p].left.store(counts[p], std::memory_order_relaxed);
        }
        num_phases_.store(num_phases, std::memory_order_relaxed);
        shares_.store(shares, std::memory_order_relaxed);
        workers_[0].is_alone_ = shares == 1;
        if (shares > 1) {
            {
                std::lock_guard<std::mutex> lock(mutex_);
                round_.store(round, std::memory_order_release);
            }
            wake_.notify_all();
        } else {
            alone_.store(round, std::memory_order_relaxed);
            round_.store(round, std::memory_order_release);
        }
        work(workers_[0], round);
    }

  private:
    // The tasks that one thread takes first.
    struct alignas(64) Part {
        std::atomic<uint64_t> next{0};  // the round, and the task that is taken next
        std::atomic<int64_t> end{0};
    };

    struct alignas(64) Phase {
        std::atomic<int64_t> left{0};  // tasks that are not done
    };

    static constexpr int PATIENCE = 500;     // pauses of a helper before it sleeps
    static constexpr int POLITENESS = 4000;  // pauses before a waiting thread lets others run
    static constexpr int64_t MOST_ALONE = 100000;  // nanoseconds that a core is kept from who else wants it
    static constexpr int64_t GRACE = 4000;   // nanoseconds, besides twice what a task takes, before it is taken over

    static uint64_t token(uint32_t round, int64_t task) { return (uint64_t)round << 32 | (uint64_t)task; }

    Part& part(int phase, int thread) { return parts_[(size_t)phase * num_threads_ + thread]; }

    void end() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            closing_ = true;
        }
        wake_.notify_all();
        for (auto& helper : helpers_) helper.join();
        helpers_.clear();
    }

    bool is_over(uint32_t round) const { return round_.load(std::memory_order_acquire) != round; }

    void work(Worker& me, uint32_t round) {
        const int num_phases = num_phases_.load(std::memory_order_relaxed);
        const int shares = shares_.load(std::memory_order_relaxed);
        if (me.number >= shares) return;  // the round began between two looks, and is one thread's alone
        me.begun_.store(nanoseconds(), std::memory_order_relaxed);
        for (int p = 0; p < num_phases; p++) {
            for (int i = 0; i < shares; i++)
                while (take(me, part(p, (me.number + i) % shares), round, p)) {
                }
            for (int pauses = 0; phases_[p].left.load(std::memory_order_acquire) > 0; pauses++) {
                if (is_over(round)) return;
                if (pauses % 64 == 63 && take_over(me, round, p)) continue;
                if (pauses < POLITENESS) {
                    pause_briefly();
                } else {
                    std::this_thread::yield();
                }
            }
            if (is_over(round)) return;
        }
    }

    // Does one task; false when there is none, or the round is over. What a thread reads of a later round
    // cannot mislead it: its claim fails, since every round has another number in `next`.
    bool take(Worker& me, Part& from, uint32_t round, int phase) {
        uint64_t next = from.next.load(std::memory_order_acquire);
        for (;;) {
            if ((uint32_t)(next >> 32) != round) return false;
            const int64_t task = (int64_t)(next & 0xffffffff);
            if (task >= from.end.load(std::memory_order_acquire)) return false;
            if (from.next.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) {
                run_task(me, round, phase, task);
                return true;
            }
        }
    }

    void run_task(Worker& me, uint32_t round, int phase, int64_t task) {
        me.round_.store(round, std::memory_order_relaxed);
        me.phase_.store(phase, std::memory_order_relaxed);
        me.task_.store(task, std::memory_order_relaxed);
        me.is_mine_ = true;
        task_(me, phase, task);
        if (me.is_alone_) {
            phases_[phase].left.fetch_sub(1, std::memory_order_relaxed);
            return;
        }
        const int64_t now = nanoseconds();
        me.took_ = now - me.begun_.load(std::memory_order_relaxed);
        me.begun_.store(now, std::memory_order_relaxed);
        if (me.is_mine_) phases_[phase].left.fetch_sub(1, std::memory_order_release);
        if (now - me.yielded_ > MOST_ALONE) {
            me.yielded_ = now;
            std::this_thread::yield();
        }
    }

    // Does the task of a thread that has had it for long, if it is offered.
    bool take_over(Worker& me, uint32_t round, int phase) {
        for (int i = 0; i < num_threads_; i++) {
            Worker& other = workers_[i];
            uint64_t ticket = other.ticket_.load(std::memory_order_acquire);
            if (ticket == 0 || &other == &me) continue;
            // What is read between looking at the ticket and taking it belongs to it.
            const int64_t task = other.task_.load(std::memory_order_relaxed);
            const bool is_here = other.round_.load(std::memory_order_relaxed) == round &&
                                 other.phase_.load(std::memory_order_relaxed) == phase;
            const int64_t since = nanoseconds() - other.begun_.load(std::memory_order_relaxed);
            if (!is_here || since < 2 * me.took_ + GRACE) continue;
            if (!other.ticket_.compare_exchange_strong(ticket, 0, std::memory_order_acq_rel)) continue;
            run_task(me, round, phase, task);
            return true;
        }
        return false;
    }

    void help(Worker& me) {
#if defined(__linux__)
        // Beside an event loop on the same cores the helper is the one that waits.
        setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 10);
#endif
        uint32_t seen = 0;
        for (;;) {
            for (int i = 0; i < PATIENCE && !is_new(seen); i++) pause_briefly();
            if (!is_new(seen)) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return closing_ || is_new(seen); });
                if (closing_) return;
            }
            seen = round_.load(std::memory_order_acquire);
            work(me, seen);
        }
    }

    bool is_new(uint32_t seen) const {
        const uint32_t round = round_.load(std::memory_order_acquire);
        return round != seen && round != alone_.load(std::memory_order_relaxed);
    }

    const int num_threads_;
    std::vector<Phase> phases_;
    std::unique_ptr<Part[]> parts_;  // [phases, threads]
    std::unique_ptr<Worker[]> workers_;
    const Task task_;
    std::vector<std::thread> helpers_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint32_t> round_{0}, alone_{0};
    std::atomic<int> num_phases_{0}, shares_{1};
    bool closing_ = false;
};
