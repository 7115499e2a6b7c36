// A Go program of which more threads sync at once than the gate has stacks, while one of them puts a
// filter on all that kills at calls that Go's fsync does not make. Says "ready"; reads a line, does it,
// and says "over", or how many syncs failed.
//
//	restricting DIRECTORY
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

func main() {
	var failed, done atomic.Int64
	var all sync.WaitGroup
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return
	}
	for i := range writers {
		all.Add(1)
		go func() {
			defer all.Done()
			file, err := os.Create(filepath.Join(os.Args[1], fmt.Sprint(i)))
			if err != nil {
				failed.Add(1)
				return
			}
			for range each {
				file.Write([]byte("x"))
				if file.Sync() != nil {
					failed.Add(1)
				}
				done.Add(1)
			}
			file.Close()
		}()
	}
	for done.Load() < writers*each/4 {
		runtime.Gosched()
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
	bufio.NewReader(os.Stdin).ReadString('\n')
}
