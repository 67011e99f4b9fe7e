import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;

/** Allocates as much as five heaps of so many MiB have, keeps one piece in eight for a while, and checks every byte of what it kept: Churn MIB. */
public class Churn {
    static final int HEAPS = 5, KEYS = 2500, KEPT_ONE_IN = 8, PIECE_BYTES_MAX = 8192;

    /** What a piece that was made in this turn is full of. */
    static byte content(int turn) {
        return (byte) (turn * 31 + turn / 256);
    }

    static void check(byte[] piece, int turn, int length) {
        if (piece.length != length) fail("a piece of " + piece.length + " bytes instead of " + length);
        for (byte part : piece) if (part != content(turn)) fail("a piece holds " + part + " instead of " + content(turn));
    }

    static void fail(String what) {
        System.err.println(what);
        System.exit(1);
    }

    static long collections() {
        long count = 0;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) count += collector.getCollectionCount();
        return count;
    }

    public static void main(String[] arguments) {
        Map<Integer, byte[]> kept = new HashMap<>();
        int[] turns = new int[KEYS], lengths = new int[KEYS];
        Random random = new Random(5);
        long wanted = HEAPS * (Long.parseLong(arguments[0]) << 20), allocated = 0, sum = 0;
        int turn = 0;
        for (; allocated < wanted; turn++) {
            byte[] piece = new byte[random.nextInt(PIECE_BYTES_MAX) + 16];
            Arrays.fill(piece, content(turn));
            allocated += piece.length;
            if (turn % KEPT_ONE_IN != 0) continue;
            int key = random.nextInt(KEYS);
            kept.put(key, piece);
            turns[key] = turn;
            lengths[key] = piece.length;
        }
        for (int key : kept.keySet()) {
            check(kept.get(key), turns[key], lengths[key]);
            sum = sum * 31 + turns[key] + lengths[key];
        }
        // Each frees one heap at most.
        if (collections() < HEAPS - 1) fail("only " + collections() + " collections");
        System.out.println(kept.size() + " pieces of " + turn + " as written, " + sum);
    }
}
