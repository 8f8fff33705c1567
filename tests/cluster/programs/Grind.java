import java.io.*;
import java.net.*;
import java.util.*;
import java.util.concurrent.*;

/** Grind STEPS MILLISECONDS: a server and its clients in one machine, each in a thread of its own, and garbage all the time. */
public class Grind {
    static final int CLIENTS = 4;

    /** Answers each number with the next one of its sequence, over a connection that stays open. */
    static void serve(Socket socket) {
        try (socket; var in = new DataInputStream(socket.getInputStream()); var out = new DataOutputStream(socket.getOutputStream())) {
            while (true) {
                long value = in.readLong();
                // Garbage: some of it lives for a while.
                Map<Long, long[]> map = new HashMap<>();
                for (long i = 0; i < 2000; i++)
                    map.put(value + i, new long[]{value * 6364136223846793005L + i});
                long sum = 0;
                for (long i = 0; i < 2000; i++)
                    sum += map.get(value + i)[0];
                out.writeLong(sum);
            }
        } catch (EOFException end) {
            return;
        } catch (IOException error) {
            System.out.println("server: " + error);
        }
    }

    public static void main(String[] words) throws Exception {
        int steps = Integer.parseInt(words[0]);
        long pause = Long.parseLong(words[1]);
        var listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        var acceptor = new Thread(() -> {
            try {
                while (true) {
                    Socket one = listener.accept();
                    new Thread(() -> serve(one)).start();
                }
            } catch (IOException closed) {
                return;
            }
        });
        acceptor.setDaemon(true);
        acceptor.start();

        var barrier = new CyclicBarrier(CLIENTS + 1);
        long[] values = new long[CLIENTS];
        for (int number = 0; number < CLIENTS; number++) {
            int own = number;
            new Thread(() -> {
                try (var socket = new Socket(listener.getInetAddress(), listener.getLocalPort())) {
                    var in = new DataInputStream(socket.getInputStream());
                    var out = new DataOutputStream(socket.getOutputStream());
                    values[own] = own + 1;
                    for (int step = 0; step < steps; step++) {
                        out.writeLong(values[own]);
                        values[own] = in.readLong();
                        barrier.await();
                        barrier.await();
                    }
                } catch (Exception error) {
                    System.out.println("client: " + error);
                }
            }).start();
        }
        for (int step = 0; step < steps; step++) {
            barrier.await();
            System.out.println(step + " " + Arrays.toString(values));
            System.out.flush();
            barrier.await();
            Thread.sleep(pause);
        }
    }
}
