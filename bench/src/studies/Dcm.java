import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.SplittableRandom;

/** The two jobs of the DCM evaluation on one machine: Grep over lines in memory, GroupBy of pairs on the heap. Arguments: JOB MIB SEED. */
public final class Dcm {
    private static final int LINE_BYTES = 100;
    private static final int PASSES = 6;
    private static final int VALUES_PER_KEY = 8;
    /** A pair on the heap with its share of the map's lists. */
    private static final int PAIR_BYTES = 200;

    /** Lines of random letters, as much as asked for; each its own object, as a cached data set has them. */
    private static List<byte[]> lines(long bytes, SplittableRandom random) {
        List<byte[]> lines = new ArrayList<>();
        for (long made = 0; made < bytes; made += LINE_BYTES) {
            byte[] line = new byte[LINE_BYTES];
            random.nextBytes(line);
            for (int place = 0; place < line.length; place++) line[place] = (byte) ('0' + (line[place] & 63));
            lines.add(line);
        }
        return lines;
    }

    private static boolean contains(byte[] line, byte[] wanted) {
        for (int start = 0; start + wanted.length <= line.length; start++) {
            int place = 0;
            while (place < wanted.length && line[start + place] == wanted[place]) place++;
            if (place == wanted.length) return true;
        }
        return false;
    }

    /** Every pass looks for other letters; each line that has them becomes text, as a result does. */
    private static long grep(long bytes, SplittableRandom random) {
        List<byte[]> lines = lines(bytes, random);
        long sum = 0;
        for (int pass = 0; pass < PASSES; pass++) {
            byte[] wanted = {(byte) ('A' + pass), (byte) ('a' + pass)};
            for (byte[] line : lines) {
                if (contains(line, wanted)) sum = sum * 31 + new String(line, java.nio.charset.StandardCharsets.ISO_8859_1).hashCode();
            }
        }
        return sum;
    }

    /** Values of a key come together in its list; then the lists are looked through. */
    private static long groupBy(long bytes, SplittableRandom random) {
        long pairs = bytes / PAIR_BYTES;
        int keys = (int) (pairs / VALUES_PER_KEY) + 1;
        long sum = 0;
        HashMap<Integer, ArrayList<byte[]>> groups = new HashMap<>();
        for (long pair = 0; pair < pairs; pair++) {
            byte[] value = new byte[LINE_BYTES];
            random.nextBytes(value);
            groups.computeIfAbsent(random.nextInt(keys), key -> new ArrayList<>()).add(value);
        }
        for (int key = 0; key < keys; key++) {
            for (byte[] value : groups.getOrDefault(key, new ArrayList<>())) sum = sum * 31 + java.util.Arrays.hashCode(value);
        }
        return sum;
    }

    public static void main(String[] arguments) {
        String job = arguments[0];
        long bytes = Long.parseLong(arguments[1]) << 20;
        long seed = Long.parseLong(arguments[2]);
        SplittableRandom random = new SplittableRandom(seed);
        long begun = System.nanoTime();
        long sum = job.equals("grep") ? grep(bytes, random) : groupBy(bytes, random);
        double seconds = (System.nanoTime() - begun) / 1e9;
        long collected = 0;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) collected += collector.getCollectionTime();
        System.out.printf(java.util.Locale.ROOT,
            "{\"workload\":\"%s\",\"size_bytes\":%d,\"seed\":%d,\"threads\":1,\"checksum\":\"%016x\",\"elapsed_seconds\":%.6f,"
                + "\"phases\":[{\"phase\":\"collector\",\"seconds\":%.3f,\"pages\":0,\"us_per_page\":0}]}%n",
            job, bytes, seed, sum, seconds, collected / 1e3);
    }
}
