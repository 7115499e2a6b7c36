// Goroutines that do what a seed has drawn, and check every answer and every time limit.
//
//	random DIRECTORY SEED [anew]
//
// Says "ready", and at the end of its input "rounds N wrong M late L disturbed 0", as
// tests/sessions/random.c does. Each wrong answer goes to stderr, and each wait that took two
// seconds longer, unless limits may begin anew.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var rounds, wrong, late int64
var beginAnew = len(os.Args) > 3
var over = make(chan struct{})

func good(is bool, what string) {
	if !is && atomic.AddInt64(&wrong, 1) < 20 {
		fmt.Fprintln(os.Stderr, what)
	}
}

func waited(begin time.Time, limit time.Duration, what string) {
	took := time.Since(begin)
	good(took >= limit && (took < limit+2*time.Second || beginAnew), what+": "+took.String())
	if took > limit+10*time.Millisecond {
		atomic.AddInt64(&late, 1)
	}
}

func limit(draw *rand.Rand) time.Duration {
	if draw.Intn(4) == 0 {
		return time.Duration(100+draw.Intn(400)) * time.Millisecond
	}
	return time.Duration(1+draw.Intn(40)) * time.Millisecond
}

func syncs(file *os.File, draw *rand.Rand) {
	sent, got := []byte{byte(draw.Intn(256))}, []byte{0}
	at := int64(draw.Intn(4096))
	n, err := file.WriteAt(sent, at)
	good(n == 1 && err == nil, "WriteAt")
	n, err = file.ReadAt(got, at)
	good(n == 1 && err == nil && got[0] == sent[0], "ReadAt")
	good(file.Sync() == nil, "Sync")
	good(syscall.Fdatasync(int(file.Fd())) == nil, "Fdatasync")
	good(syscall.Fsync(-1) == syscall.EBADF, "Fsync of nothing")
}

// A deadline of the network, which the runtime waits for in epoll_pwait.
func deadline(draw *rand.Rand, here, there net.Conn) {
	limit, buffer := limit(draw), make([]byte, 50)
	begin := time.Now()
	here.SetReadDeadline(begin.Add(limit))
	_, err := here.Read(buffer)
	good(errors.Is(err, os.ErrDeadlineExceeded), "a deadline")
	waited(begin, limit, "a deadline")
	here.SetReadDeadline(time.Time{})
	sent := bytes.Repeat([]byte{byte(draw.Intn(256))}, 50)
	n, err := there.Write(sent)
	good(n == 50 && err == nil, "Write")
	n, err = here.Read(buffer)
	good(n == 50 && err == nil && bytes.Equal(sent, buffer), "Read")
}

func live(folder string, number int, seed int64, all *sync.WaitGroup) {
	defer all.Done()
	draw := rand.New(rand.NewSource(seed*31 + int64(number)))
	file, err := os.Create(filepath.Join(folder, "go"+strconv.Itoa(number)))
	good(err == nil, "Create")
	listener, err := net.Listen("unix", filepath.Join(folder, "socket"+strconv.Itoa(number)))
	good(err == nil, "Listen")
	there, err := net.Dial("unix", listener.Addr().String())
	good(err == nil, "Dial")
	here, err := listener.Accept()
	good(err == nil, "Accept")
	for {
		select {
		case <-over:
			return
		default:
		}
		switch draw.Intn(5) {
		case 0, 1:
			syncs(file, draw)
		case 2:
			begin, limit := time.Now(), limit(draw)
			time.Sleep(limit)
			waited(begin, limit, "Sleep")
		case 3:
			deadline(draw, here, there)
		default:
			if draw.Intn(4) == 0 {
				good(exec.Command("/bin/true").Run() == nil, "a command")
			}
		}
		atomic.AddInt64(&rounds, 1)
	}
}

func main() {
	seed, _ := strconv.ParseInt(os.Args[2], 10, 64)
	var all sync.WaitGroup
	for number := 0; number < 1+int(seed%6); number++ {
		all.Add(1)
		go live(os.Args[1], number, seed, &all)
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString(0)
	close(over)
	all.Wait()
	fmt.Println("rounds", rounds, "wrong", wrong, "late", late, "disturbed", 0)
}
