// Goroutines with small stacks that wait for each other's locks, until the input ends; each checks
// what it was given.
package main

import (
	"fmt"
	"os"
	"sync"
)

func pass(in, out chan int, stop chan bool, wrong *int) {
	for {
		select {
		case n := <-in:
			var kept [8]int
			for i := range kept {
				kept[i] = n + i
			}
			select {
			case out <- n:
			case <-stop:
				return
			}
			for i := range kept {
				if kept[i] != n+i {
					*wrong++
				}
			}
		case <-stop:
			return
		}
	}
}

func main() {
	const many = 128
	common, stop := make(chan int, many), make(chan bool)
	wrong := make([]int, many)
	var all sync.WaitGroup
	for i := 0; i < many; i++ {
		if i%2 == 0 {
			common <- i
		}
		all.Add(1)
		go func(i int) {
			defer all.Done()
			pass(common, common, stop, &wrong[i])
		}(i)
	}
	fmt.Println("ready")
	os.Stdin.Read(make([]byte, 1))
	close(stop)
	all.Wait()
	sum := 0
	for _, n := range wrong {
		sum += n
	}
	fmt.Println("wrong", sum)
}
