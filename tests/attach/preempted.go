// Go's own signals (SIGURG preempts, SIGPROF samples) come to goroutines that do nothing but make
// system calls which the runtime hears nothing of. For each line that is read it says "ready" once so
// many collections of garbage are over; at the end of its input it ends.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"syscall"
)

func main() {
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		panic(err)
	}
	for i := 0; i < runtime.GOMAXPROCS(0); i++ {
		go func() {
			for {
				for k := 0; k < 1000; k++ {
					syscall.RawSyscall6(syscall.SYS_GETPID, 0, 0, 0, 0, 0, 0)
				}
				runtime.Gosched()
			}
		}()
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		times, err := strconv.Atoi(lines.Text())
		if err != nil {
			panic(err)
		}
		for ; times > 0; times-- {
			runtime.GC()
		}
		fmt.Println("over")
	}
}
