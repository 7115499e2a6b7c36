// A Go program of which many threads sync at once, while one of them restricts all, or asks. Says
// "ready"; reads a line, does it, and says "over", or what failed.
//
//	restricting DIRECTORY         more threads than the gate has stacks; a filter on all that kills at
//	                              calls that Go's fsync does not make
//	restricting DIRECTORY behind  syncs some, says "warm", reads a line; then four threads sync once,
//	                              and the filter stands before the disk has answered
//	restricting DIRECTORY asks    more threads than that; prctl(PR_GET_DUMPABLE) meanwhile: says how
//	                              many milliseconds the longest took
package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const writers, each = 32, 40

type instruction struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

type program struct {
	length uint16
	_      [6]byte
	first  *instruction
}

// sync_file_range, statx, syncfs, msync, socket, connect, clock_gettime, geteuid
var killed = []uint32{277, 332, 306, 26, 41, 42, 228, 107}

func filter() syscall.Errno {
	code := []instruction{{0x20, 0, 0, 0}}
	for _, number := range killed {
		code = append(code, instruction{0x15, 0, 1, number}, instruction{6, 0, 0, 0x80000000})
	}
	code = append(code, instruction{6, 0, 0, 0x7fff0000})
	p := program{length: uint16(len(code)), first: &code[0]}
	runtime.LockOSThread()
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, 38, 1, 0, 0, 0, 0); e != 0 {
		return e
	}
	_, _, e := syscall.Syscall(317, 1, 1, uintptr(unsafe.Pointer(&p)))
	return e
}

// Syncs a file of its own so many times.
func hammer(name string, times int, done, failed *atomic.Int64) {
	file, err := os.Create(filepath.Join(os.Args[1], name))
	if err != nil {
		failed.Add(1)
		return
	}
	defer file.Close()
	for range times {
		file.Write([]byte("x"))
		if file.Sync() != nil {
			failed.Add(1)
		}
		done.Add(1)
	}
}

// Syncs in so many threads at once; tells when all are over.
func hammers(threads, times int, done, failed *atomic.Int64) *sync.WaitGroup {
	var all sync.WaitGroup
	for i := range threads {
		all.Add(1)
		go func() {
			defer all.Done()
			runtime.LockOSThread()
			hammer(fmt.Sprint(i), times, done, failed)
		}()
	}
	return &all
}

// Whether so many threads of this process wait in fsync.
func wait(threads int) bool {
	tasks, _ := filepath.Glob("/proc/self/task/*/syscall")
	for _, task := range tasks {
		if call, _ := os.ReadFile(task); len(call) > 3 && string(call[:3]) == "74 " {
			threads--
		}
	}
	return threads <= 0
}

func longestAsk(done *atomic.Int64, until int64) time.Duration {
	var longest time.Duration
	for done.Load() < until {
		begun := time.Now()
		syscall.RawSyscall(syscall.SYS_PRCTL, 3, 0, 0)
		longest = max(longest, time.Since(begun))
		time.Sleep(5 * time.Millisecond)
	}
	return longest
}

func main() {
	var failed, done atomic.Int64
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	if _, err := in.ReadString('\n'); err != nil {
		return
	}
	var all *sync.WaitGroup
	switch {
	case len(os.Args) == 2:
		all = hammers(writers, each, &done, &failed)
		for done.Load() < writers*each/4 {
			runtime.Gosched()
		}
	case os.Args[2] == "behind":
		hammer("warm", each, &done, &failed)
		fmt.Println("warm")
		in.ReadString('\n')
		all = hammers(4, 1, &done, &failed)
		for !wait(4) {
			runtime.Gosched()
		}
	case os.Args[2] == "asks":
		all = hammers(writers, 2, &done, &failed)
		fmt.Println(longestAsk(&done, 2*writers).Milliseconds())
		all.Wait()
		in.ReadString('\n')
		return
	}
	if e := filter(); e != 0 {
		fmt.Println("filter:", e)
		return
	}
	all.Wait()
	if failed.Load() == 0 {
		fmt.Println("over")
	} else {
		fmt.Println("failed", failed.Load())
	}
	in.ReadString('\n')
}
