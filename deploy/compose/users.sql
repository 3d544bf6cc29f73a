-- The users of the compose demo, with no more rights than they need. MySQL's
-- image runs this once, when its data folder is made. Passwords of a demo.

CREATE USER 'shop'@'%' IDENTIFIED BY 'shop-demo';
GRANT CREATE, SELECT, INSERT, UPDATE ON shop.* TO 'shop'@'%';

CREATE USER 'rowferry'@'%' IDENTIFIED BY 'rowferry-demo';
-- to read the binlog and to ask the server where it stands
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'rowferry'@'%';
-- to read the outbox and to mark what was sent
GRANT SELECT, UPDATE ON shop.outbox TO 'rowferry'@'%';
-- its own tables; CREATE is for `rowferry migrate up` only
GRANT CREATE, SELECT, INSERT, UPDATE ON shop.rowferry_checkpoint TO 'rowferry'@'%';
GRANT CREATE, SELECT, INSERT, UPDATE ON shop.rowferry_topic TO 'rowferry'@'%';
GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON shop.rowferry_dead TO 'rowferry'@'%';
GRANT CREATE, SELECT, INSERT ON shop.rowferry_migrations TO 'rowferry'@'%';
