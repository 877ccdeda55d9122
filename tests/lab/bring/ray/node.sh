set -e
if [ "$NODE_RANK" = 0 ]; then
    ray start --head --node-ip-address="$MASTER_ADDR" --port="$MASTER_PORT"
    exec python driver.py
fi
until (: < "/dev/tcp/$MASTER_ADDR/$MASTER_PORT") 2> /dev/null; do sleep 1; done
exec ray start --address="$MASTER_ADDR:$MASTER_PORT" --block
