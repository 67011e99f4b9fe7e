import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Locale;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaPairRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.storage.StorageLevel;
import scala.Tuple2;

/**
 * DCM's two jobs in Spark itself, over a data set that is made and kept in memory: Grep over lines, GroupBy of pairs. Not part of the
 * study, which needs Java only; docs/measurements.md says how to run it. Arguments: JOB MIB PASSES. The checksum does not depend on order.
 */
public final class SparkJobs {
    private static final int LINE_BYTES = 100;
    private static final int PARTITIONS = 16;
    private static final int VALUES_PER_KEY = 8;
    private static final long SEED = 20_261_122;

    /** The lines of one partition, of random letters, each made when it is asked for. */
    private static final class Lines implements Iterator<String> {
        private final SplittableRandom random;
        private final byte[] line = new byte[LINE_BYTES];
        private long left;

        Lines(int partition, long lines) {
            random = new SplittableRandom(SEED + partition);
            left = lines;
        }

        @Override
        public boolean hasNext() {
            return left > 0;
        }

        @Override
        public String next() {
            left--;
            random.nextBytes(line);
            for (int place = 0; place < line.length; place++) line[place] = (byte) ('0' + (line[place] & 63));
            return new String(line, StandardCharsets.ISO_8859_1);
        }
    }

    /** The same lines, each with a key. */
    private static final class Pairs implements Iterator<Tuple2<Integer, String>> {
        private final SplittableRandom random;
        private final Lines lines;
        private final int keys;

        Pairs(int partition, long pairs, int keys) {
            random = new SplittableRandom(~(SEED + partition));
            lines = new Lines(partition, pairs);
            this.keys = keys;
        }

        @Override
        public boolean hasNext() {
            return lines.hasNext();
        }

        @Override
        public Tuple2<Integer, String> next() {
            return new Tuple2<>(random.nextInt(keys), lines.next());
        }
    }

    private static JavaRDD<Integer> partitions(JavaSparkContext spark) {
        return spark.parallelize(IntStream.range(0, PARTITIONS).boxed().toList(), PARTITIONS);
    }

    /** Every pass looks for other letters. */
    private static long grep(JavaSparkContext spark, long linesEach, int passes) {
        JavaRDD<String> lines =
            partitions(spark).flatMap(partition -> new Lines(partition, linesEach)).persist(StorageLevel.MEMORY_ONLY());
        long sum = lines.count();
        for (int pass = 0; pass < passes; pass++) {
            String wanted = "" + (char) ('A' + pass) + (char) ('a' + pass);
            JavaRDD<String> found = lines.filter(line -> line.contains(wanted));
            sum = sum * 31 + found.map(line -> (long) line.hashCode()).reduce(Long::sum) + found.count();
        }
        return sum;
    }

    /** Values of a key come together through a shuffle, and are looked through. */
    private static long groupBy(JavaSparkContext spark, long pairsEach, int passes) {
        int keys = (int) (pairsEach * PARTITIONS / VALUES_PER_KEY);
        JavaPairRDD<Integer, String> pairs =
            partitions(spark).flatMapToPair(partition -> new Pairs(partition, pairsEach, keys)).persist(StorageLevel.MEMORY_ONLY());
        long sum = pairs.count();
        for (int pass = 0; pass < passes; pass++) {
            JavaRDD<Long> groups = pairs.groupByKey(PARTITIONS).map(group -> {
                long values = 0;
                for (String value : group._2()) values += value.hashCode();
                return group._1() * values;
            });
            sum = sum * 31 + groups.reduce(Long::sum) + groups.count();
        }
        return sum;
    }

    public static void main(String[] arguments) {
        String job = arguments[0];
        long linesEach = (Long.parseLong(arguments[1]) << 20) / LINE_BYTES / PARTITIONS;
        int passes = Integer.parseInt(arguments[2]);
        JavaSparkContext spark = new JavaSparkContext(new SparkConf().setAppName(job));
        long begun = System.nanoTime();
        long sum = switch (job) {
            case "grep" -> grep(spark, linesEach, passes);
            case "group-by" -> groupBy(spark, linesEach, passes);
            default -> throw new IllegalArgumentException("the job is grep or group-by, not " + job);
        };
        double seconds = (System.nanoTime() - begun) / 1e9;
        long collected = 0;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) collected += collector.getCollectionTime();
        long cachedPartitions = 0;
        for (var info : spark.sc().getRDDStorageInfo()) cachedPartitions += info.numCachedPartitions();
        spark.stop();
        System.out.printf(Locale.ROOT, "%s: checksum %016x%n", job, sum);
        System.err.printf(Locale.ROOT, "%.3f s, of which %.3f s by the collector; %d of %d partitions stayed in memory%n",
            seconds, collected / 1e3, cachedPartitions, PARTITIONS);
    }
}
