// Writes from many threads to files that are opened with O_SYNC; each writes a byte at a time.
//
//	writers DIRECTORY THREADS
//
// Says "ready" when each has written once, and at the end of its input "rounds N wrong M".
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
)

var rounds, wrong int64

func write(name string, ready *sync.WaitGroup) {
	runtime.LockOSThread()
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_SYNC, 0600)
	if err != nil {
		panic(err)
	}
	for round := int64(0); ; round++ {
		n, err := file.WriteAt([]byte("a"), round%4096)
		if n != 1 || err != nil {
			atomic.AddInt64(&wrong, 1)
		}
		atomic.AddInt64(&rounds, 1)
		if round == 0 {
			ready.Done()
		}
	}
}

func main() {
	threads, _ := strconv.Atoi(os.Args[2])
	input := bufio.NewReader(os.Stdin)
	first, err := os.Create(os.Args[1] + "/first")
	if err != nil {
		panic(err)
	}
	fmt.Println("begun")
	// Told to sync, until it is told to open its files.
	for line, _ := input.ReadString('\n'); line == "sync\n"; line, _ = input.ReadString('\n') {
		first.Sync()
		fmt.Println("synced")
	}
	var ready sync.WaitGroup
	ready.Add(threads)
	for i := 0; i < threads; i++ {
		go write(fmt.Sprintf("%s/w%d", os.Args[1], i), &ready)
	}
	ready.Wait()
	fmt.Println("ready")
	for {
		if _, err := input.ReadByte(); err != nil {
			break
		}
	}
	fmt.Printf("rounds %d wrong %d\n", atomic.LoadInt64(&rounds), atomic.LoadInt64(&wrong))
}
